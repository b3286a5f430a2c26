// What every C interface of the library rests on: errors, structs of the host's that may grow, calls into the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "dhlo/runtime.h"

namespace dhlo {

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

// Whether it can be the sizeof of one of the host's structs, of whatever version: all consist of whole words, and a
// number that is larger was never set.
inline bool is_struct_size(uint32_t bytes) { return bytes % sizeof(int64_t) == 0 && bytes <= 4096; }

// Fills a struct of the host's, which may have been built with a header that knows fewer fields, or more. Throws Error.
template <class T>
void fill(T* out, T value, const char* what) {
  const size_t room = out->struct_bytes;
  if (room < 2 * sizeof(int64_t) || !is_struct_size(out->struct_bytes))
    throw Error(DHLO_INVALID_ARGUMENT, std::string(what) + ": struct_bytes is not set to the struct's sizeof");
  value.struct_bytes = out->struct_bytes;
  std::memcpy(out, &value, std::min(room, sizeof value));
  if (room > sizeof value) std::memset(reinterpret_cast<char*>(out) + sizeof value, 0, room - sizeof value);
}

// An option struct of the host's as this library knows it. `least` are the bytes that every host's has. Throws Error.
template <class T>
T read_struct(const T* given, void (*init)(T*), size_t least, const char* what) {
  T options;
  init(&options);
  if (given == nullptr) return options;
  if (given->struct_bytes < least || !is_struct_size(given->struct_bytes))
    throw Error(DHLO_INVALID_ARGUMENT,
                std::string(what) + ": struct_bytes is not set; use the struct's _init function");
  std::memcpy(&options, given, std::min<size_t>(given->struct_bytes, sizeof options));
  return options;
}

// Runs `body`, turning exceptions into a status; `record` receives the text.
template <class Body, class Record>
dhlo_status guard(Body&& body, Record&& record) noexcept {
  try {
    body();
    return DHLO_OK;
  } catch (const Error& error) {
    record(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    record("out of memory");
    return DHLO_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    record(error.what());
    return DHLO_INTERNAL;
  } catch (...) {
    record("an exception of unknown type");
    return DHLO_INTERNAL;
  }
}

// Calls into the host, whose exceptions must not come further than this: `failed` stands for the result of a hook that
// throws.
template <class Hook, class Result>
Result fenced(Hook&& hook, Result failed) noexcept {
  try {
    return hook();
  } catch (...) {
    return failed;
  }
}

}  // namespace dhlo
