// Reads and validates model files, from disk or from memory, before anything of them is mapped for execution.
#pragma once

#include <string>

#include "dhlo/abi.h"
#include "memory.hpp"

namespace dhlo {

// Where the bytes of a model file come from.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t bytes() const = 0;
  // Copies [offset, offset + bytes) to `to`; the range lies inside. Thread-safe. Throws Error.
  virtual void read(void* to, int64_t bytes, int64_t offset) const = 0;
  // How errors call it, e.g. "model file 'a.so'".
  virtual const std::string& label() const = 0;
};

// A file that stays open while the object lives.
class FileSource final : public Source {
 public:
  explicit FileSource(const char* path);
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override;
  int64_t bytes() const override { return bytes_; }
  void read(void* to, int64_t bytes, int64_t offset) const override;
  const std::string& label() const override { return label_; }

 private:
  std::string label_;
  int fd_ = -1;
  int64_t bytes_ = 0;
};

// Borrowed memory.
class MemorySource final : public Source {
 public:
  MemorySource(const void* data, int64_t bytes) : data_(static_cast<const uint8_t*>(data)), bytes_(bytes) {}
  int64_t bytes() const override { return bytes_; }
  void read(void* to, int64_t bytes, int64_t offset) const override;
  const std::string& label() const override { return label_; }

 private:
  std::string label_ = "model in memory";
  const uint8_t* data_;
  int64_t bytes_;
};

// Code mapped from an anonymous file; unmapped by the destructor.
class Code {
 public:
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code();
  // Maps the ELF image and returns its descriptor. Throws Error.
  const dhlo_abi_model* load(const uint8_t* image, int64_t bytes, const std::string& label);

 private:
  int fd_ = -1;  // kept: the path under /proc names the library to the dynamic loader, so it must not be reused
  void* handle_ = nullptr;
};

// Reads the trailer and checks magic, version and extents. Throws Error.
dhlo_trailer read_trailer(const Source& source);

// Reads the ELF part into `image` and checks its hash and architecture. Throws Error.
void read_code(const Source& source, const dhlo_trailer& trailer, Block* image);

// Reads the constants into `to`, with several threads if there is much to read; checks their hash if asked to. Throws
// Error.
void read_constants(const Source& source, const dhlo_trailer& trailer, bool verify, Block* to);

}  // namespace dhlo
