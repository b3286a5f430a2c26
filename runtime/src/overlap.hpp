// Which of a call's tensors share memory.
#pragma once

#include <cstdint>

#include "dhlo/abi.h"

namespace dhlo {

// The bytes that a strided tensor covers: runs of `run` bytes, one for every index of its outer dims.
struct Region {
  struct Dim {
    int64_t size, stride;  // stride in bytes, positive
  };
  const uint8_t* begin = nullptr;  // the lowest byte, and one past the highest
  const uint8_t* end = nullptr;
  int64_t run = 0;
  int32_t rank = 0;  // of the outer dims, strides ascending
  Dim dims[DHLO_ABI_MAX_RANK];
  bool folded = false;  // two of its indices may name the same byte

  bool empty() const { return begin == end; }
};

// False if the strides of a tensor of `item` bytes an element reach beyond what a process can address.
bool addressable(const dhlo_tensor& tensor, int64_t item) noexcept;

// The region of such a tensor that is addressable.
void find_region(const dhlo_tensor& tensor, int64_t item, Region* region) noexcept;

// `bytes` bytes in a row.
Region whole_region(const void* data, int64_t bytes) noexcept;

// False only if no byte belongs to both. Exact but for pairs that interleave in so involved a way that a bounded search
// doesn't settle it; those count as sharing.
bool share_bytes(const Region& a, const Region& b) noexcept;

}  // namespace dhlo
