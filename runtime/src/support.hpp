// Texts of errors for the caller, and small helpers that every part uses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "boundary.hpp"
#include "dhlo/runtime.h"

namespace dhlo {

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

}  // namespace dhlo
