// Reads and verifies model files, from disk or from memory, before anything of them is mapped for execution.
#pragma once

#include <string>
#include <vector>

#include "dhlo/abi.h"
#include "memory.hpp"
#include "sha256.hpp"

namespace dhlo {

// Where the bytes of a model file come from.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t bytes() const = 0;
  // Copies [offset, offset + bytes) to `to`; the range lies inside. Thread-safe. Throws Error.
  virtual void read(void* to, int64_t bytes, int64_t offset) const = 0;
  // The open file that they are in, at the same offsets; -1 if they are in memory.
  virtual int descriptor() const { return -1; }
  // How errors call it, e.g. "model file 'a.so'".
  virtual const std::string& label() const = 0;
};

// A file that stays open while the object lives.
class FileSource final : public Source {
 public:
  FileSource(const std::string& path, std::string label);
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override;
  int64_t bytes() const override { return bytes_; }
  void read(void* to, int64_t bytes, int64_t offset) const override;
  int descriptor() const override { return fd_; }
  const std::string& label() const override { return label_; }

 private:
  std::string label_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

// Reads [offset, offset + bytes) of an open file. Throws Error.
void read_at(int fd, void* to, int64_t bytes, int64_t offset, const std::string& label);

// Borrowed memory.
class MemorySource final : public Source {
 public:
  MemorySource(const void* data, int64_t bytes, std::string label)
      : label_(std::move(label)), data_(static_cast<const uint8_t*>(data)), bytes_(bytes) {}
  int64_t bytes() const override { return bytes_; }
  void read(void* to, int64_t bytes, int64_t offset) const override;
  const std::string& label() const override { return label_; }

 private:
  std::string label_;
  const uint8_t* data_;
  int64_t bytes_;
};

// Of which constants a model file says that they are its own, and in which file of its folder they are; name is empty
// where they are in the model file itself.
struct WeightsReference {
  std::string name;
  uint64_t bytes = 0;
  Digest digest{};
};

// The sections of a model file or a weights file. The constructor reads trailer and table and verifies them, and all
// reading is through them; a section that isn't what the table says is refused by its name. Every function throws
// Error.
class Sections {
 public:
  enum class Form { kModel, kWeights };
  Sections(const Source& source, Form form);

  // The SHA-256 of the trailer, which stands for the whole file.
  const Digest& file_digest() const { return file_digest_; }
  bool has(dhlo_section_kind kind) const;  // the others are there
  int64_t bytes(dhlo_section_kind kind) const { return static_cast<int64_t>(find(kind).bytes); }
  // Reads a section, with up to `threads` threads if there is much to read; verifies its digest if asked to.
  void read(dhlo_section_kind kind, int64_t threads, bool verify, Block* to) const;
  // Maps a section of a file, unverified. False, with errno, if that can't be done.
  bool map(dhlo_section_kind kind, bool populate, Mapping* to) const;
  // Verifies a section's digest, holding little of it in memory.
  void check(dhlo_section_kind kind, int64_t threads) const;
  // A section of text, verified.
  std::string text(dhlo_section_kind kind) const;
  Digest digest(dhlo_section_kind kind) const;
  // Of a model file, verified.
  WeightsReference weights() const;
  // Whether a weights file says that its constants were made for the section of code with that digest.
  bool made_for(const Digest& code) const;
  // That there is nothing but zeros between sections.
  void check_padding() const;

 private:
  void read_trailer();
  void read_table();
  void check_kinds(uint32_t seen) const;
  const dhlo_section& find(dhlo_section_kind kind) const;
  void compare(const dhlo_section& section, const Digest& got) const;
  [[noreturn]] void damaged(const std::string& text) const;

  const Source& source_;
  const Form form_;
  dhlo_trailer trailer_{};
  std::vector<dhlo_section> table_;
  Digest file_digest_{};
};

// That the code is an ELF shared object for this processor. Throws Error.
void check_elf(const uint8_t* image, int64_t bytes, const std::string& label);

}  // namespace dhlo
