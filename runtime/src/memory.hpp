// Aligned memory blocks: the host's allocator, or our own with huge pages for large blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dhlo/runtime.h"

namespace dhlo {

// A block of memory with one owner. Neither copied nor moved; empty after free().
class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { free(); }

  // Replaces the block (content lost) by one of at least `bytes`, 64-byte aligned; large ones are 2 MB aligned
  // anonymous memory with huge pages advised. Returns false, leaving the block empty, if there is no memory. The
  // allocator must outlive it; whatever it throws counts as no memory.
  // Behind a large block of ours, `room` more bytes of address space are kept, which take no memory until extend() uses
  // them.
  bool allocate(int64_t bytes, const dhlo_allocator* host, int64_t room = 0) noexcept;
  // Lengthens the block where it is, if it has room; what it holds stays.
  bool extend(int64_t bytes) noexcept;
  // The last allocate() failed because the host's allocator gave memory that isn't aligned as it must be.
  bool misaligned() const { return misaligned_; }
  void free() noexcept;

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  void* mapping_ = nullptr;  // the whole mapping behind data_, if it is one
  size_t mapping_bytes_ = 0;
  const dhlo_allocator* host_ = nullptr;
  bool misaligned_ = false;
};

// Bytes to reserve for a block that must hold `needed` and held `held`: grows geometrically so that random shapes
// settle, but never past `budget` unless `needed` itself is.
int64_t grown_bytes(int64_t needed, int64_t held, int64_t budget) noexcept;

}  // namespace dhlo
