// Errors inside the engine, and what the C interface makes of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "dhlo/runtime.h"

namespace dhlo::serve {

// Thrown inside the library only; every C entry point turns it into a status and a text.
class Error : public std::exception {
 public:
  Error(dhlo_status status, std::string text) : status_(status), text_(std::move(text)) {}
  dhlo_status status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  dhlo_status status_;
  std::string text_;
};

[[noreturn]] inline void refuse(const std::string& text) { throw Error(DHLO_INVALID_ARGUMENT, text); }

// Whether it can be the sizeof of one of the host's structs, of whatever version.
inline bool is_struct_size(uint32_t bytes) { return bytes % sizeof(int64_t) == 0 && bytes <= 4096; }

// An option struct of the host's as this library knows it; all that were ever there have `least` bytes.
template <class T>
T read_struct(const T* given, void (*init)(T*), size_t least, const char* what) {
  T options;
  init(&options);
  if (given == nullptr) return options;
  if (given->struct_bytes < least || !is_struct_size(given->struct_bytes))
    refuse(std::string(what) + ": struct_bytes is not set; use the struct's _init function");
  std::memcpy(&options, given, std::min<size_t>(given->struct_bytes, sizeof options));
  return options;
}

// Fills a struct of the host's, which may know fewer fields, or more.
template <class T>
void fill(T* out, T value, const char* what) {
  const size_t room = out->struct_bytes;
  if (room < 2 * sizeof(int64_t) || !is_struct_size(out->struct_bytes))
    refuse(std::string(what) + ": struct_bytes is not set to the struct's sizeof");
  value.struct_bytes = out->struct_bytes;
  std::memcpy(out, &value, std::min(room, sizeof value));
  if (room > sizeof value) std::memset(reinterpret_cast<char*>(out) + sizeof value, 0, room - sizeof value);
}

// Calls into the host, whose exceptions must not come further: `failed` stands for the result of a hook that throws.
template <class Hook, class Result>
Result fenced(Hook&& hook, Result failed) noexcept {
  try {
    return hook();
  } catch (...) {
    return failed;
  }
}

}  // namespace dhlo::serve
