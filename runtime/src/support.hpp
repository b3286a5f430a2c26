// Errors inside the runtime, their text for the caller, and small helpers that every part uses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "dhlo/runtime.h"

namespace dhlo {

// Thrown inside the runtime only; every C entry point turns it into a status and a text.
class Error : public std::exception {
 public:
  Error(dhlo_status status, std::string text) : status_(status), text_(std::move(text)) {}
  dhlo_status status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  dhlo_status status_;
  std::string text_;
};

// Text of the last failure of a function without a session, on this thread.
void set_last_error(const char* text) noexcept;

// Message of a failed check: its text, then the numbers as its kind says.
std::string describe_check(const dhlo_abi_check& check, int64_t expected, int64_t got);
// Whether it is the caller who broke the contract, or the machine that is too small.
inline dhlo_status check_status(const dhlo_abi_check& check) {
  return check.kind == DHLO_CHECK_SIZE ? DHLO_OUT_OF_MEMORY : DHLO_CONTRACT;
}

// "input 1 'mask'"; the name is left out where the model gives none.
std::string describe_value(const char* what, int64_t index, const dhlo_abi_value* value);

// Elements of a tensor with non-negative sizes; -1 if the count does not fit in 62 bits.
int64_t count_elements(int64_t rank, const int64_t* sizes) noexcept;

// Throws Error.
void check_count(const dhlo_abi_entry& entry, int64_t num_inputs);
// Checks what compiled code takes for granted: count, ranks, sizes, and data if `need_data`. Throws Error.
void check_inputs(const dhlo_abi_entry& entry, const dhlo_tensor* inputs, int64_t num_inputs, bool need_data);

// What the system says of an errno.
std::string system_text(int error);

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Bytes between the scratch of one worker and of the next: they differ in the cache lines that they write.
inline int64_t scratch_stride(int64_t scratch_bytes) { return round_up(scratch_bytes, 128); }

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
