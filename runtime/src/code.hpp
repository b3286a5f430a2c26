// Maps the code of a model and connects it with the functions of this process that it calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dhlo/abi.h"
#include "elf_image.hpp"

namespace dhlo {

// Mapped code; unmapped by the destructor. Nothing else is kept open but libraries of custom operators.
class Code {
 public:
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code();
  // Maps the ELF image, runs its constructors and returns its descriptor. Throws Error.
  const dhlo_abi_model* load(const uint8_t* image, int64_t bytes, const std::string& label);

 private:
  void open_libraries(const std::string& label);
  const void* resolve(const char* name) const;

  ElfImage image_;
  std::vector<void*> libraries_;
  std::vector<void (*)()> destructors_;
};

// The function of libm or libc of that name, of those that generated code calls; null if it is none of them.
const void* known_function(const char* name);

}  // namespace dhlo
