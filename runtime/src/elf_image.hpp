// An ELF shared object in memory of this process: mapped, relocated and protected without files or the dynamic loader.
#pragma once

#include <elf.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dhlo {

// Whatever the tables of an image say, nothing is read or written outside of the image and its own mapping, and nothing
// of it is executed; what they may not say is refused. Memory is never writable and executable at once.
class ElfImage {
 public:
  // The address of a function or object that the image doesn't define; null if there is none.
  using Resolve = std::function<const void*(const char* name)>;

  ElfImage() = default;
  ElfImage(const ElfImage&) = delete;
  ElfImage& operator=(const ElfImage&) = delete;
  ~ElfImage();

  // Copies the segments of an image that check_elf() has passed to memory of their own. `label` is what errors call the
  // file; they say DHLO_FORMAT, or DHLO_OUT_OF_MEMORY. Throws Error.
  void map(const uint8_t* image, int64_t bytes, const std::string& label);
  // Names of the libraries that it needs, and the folders to look for them first.
  const std::vector<std::string>& needed() const { return needed_; }
  const std::vector<std::string>& folders() const { return folders_; }
  // Writes addresses where the relocations say so, then makes code executable and constants read-only. Throws Error
  // for what nothing defines, and DHLO_IO where the system doesn't let memory become executable.
  void relocate(const Resolve& resolve);
  // An exported symbol of at least so many bytes; null if there is none. Throws Error.
  const void* find(const char* name, uint64_t bytes) const;
  // Functions to call when it has been loaded, and before it goes, in this order. Throws Error.
  std::vector<void (*)()> constructors() const { return functions(initial_); }
  std::vector<void (*)()> destructors() const;
  // Its functions with names, for profilers.
  struct Function {
    uint64_t address, bytes;
    std::string_view name;  // of the image
  };
  static std::vector<Function> functions_of(const uint8_t* image, int64_t bytes);
  uint64_t bias() const { return bias_; }

 private:
  struct Segment {
    uint64_t address, bytes;  // whole pages
    uint64_t exact_address, exact_bytes;
    uint64_t offset, content;  // of the image; zeros follow
    uint32_t flags;
  };
  struct Table {
    uint64_t address = 0, bytes = 0;
  };
  struct Functions {
    uint64_t one = 0;
    Table array;
  };

  // Out of line, since checks are many.
  [[noreturn, gnu::noinline, gnu::cold]] void malformed(const char* what, const std::string& more = {}) const;
  void add_segment(const Elf64_Phdr& part, uint64_t image_bytes);
  void read_dynamic(Table dynamic);
  [[gnu::noinline]] uint8_t* at(uint64_t address, uint64_t bytes, const char* what, uint32_t flags = 0) const;
  template <class T>
  T read(uint64_t address, const char* what) const;
  const char* text(uint64_t offset) const;
  uint64_t symbol_address(uint64_t index, const Resolve& resolve) const;
  void apply(const Table& relocations, const Resolve& resolve);
  void apply_relative();
  void add_bias(uint64_t address);
  void protect();
  std::vector<void (*)()> functions(const Functions& of) const;

  std::string label_;
  uint8_t* base_ = nullptr;  // where the lowest page is mapped
  uint64_t low_ = 0, span_ = 0, bias_ = 0;
  std::vector<Segment> segments_;
  Table relro_, relocations_, plt_, relative_, strings_;
  uint64_t symbols_ = 0, hash_ = 0;
  Functions initial_, final_;
  std::vector<std::string> needed_, folders_;
};

}  // namespace dhlo
