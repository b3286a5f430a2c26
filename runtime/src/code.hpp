// Maps the code of a model: from an anonymous file, or from a private temporary one where there is no /proc.
#pragma once

#include <cstdint>
#include <string>

#include "dhlo/abi.h"

namespace dhlo {

// Mapped code; unmapped by the destructor. Nothing else is kept open.
class Code {
 public:
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code();
  // Maps the ELF image, runs its constructors and returns its descriptor. Throws Error.
  const dhlo_abi_model* load(const uint8_t* image, int64_t bytes, const std::string& label);

 private:
  void* handle_ = nullptr;
};

}  // namespace dhlo
