// Aligned memory blocks: the host's allocator, or our own with huge pages for large blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dhlo/runtime.h"

namespace dhlo {

// Counts the bytes that an environment's sessions and models hold, up to a limit.
class Account {
 public:
  explicit Account(int64_t limit = 0) : limit_(limit > 0 ? limit : INT64_MAX) {}
  bool take(int64_t bytes) noexcept {
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void give(int64_t bytes) noexcept { used_.fetch_sub(bytes); }
  int64_t used() const noexcept { return used_.load(); }
  int64_t limit() const noexcept { return limit_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

// Why it refused.
std::string over_limit_text(int64_t bytes, const Account& account);

constexpr const char* kMisaligned = "the host's allocator gave memory that isn't aligned as it was asked for";

// Where blocks come from: the host's allocator, null for our own, and who counts them, null for nobody.
struct Memory {
  const dhlo_allocator* host = nullptr;
  Account* account = nullptr;
};

// A block of memory with one owner. Neither copied nor moved; empty after free().
class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { free(); }

  // Replaces the block (content lost) by one of at least `bytes`, 64-byte aligned; large ones are 2 MB aligned
  // anonymous memory with huge pages advised. Returns false, leaving the block empty, if there is no memory. The
  // allocator and the account must outlive it; whatever the allocator throws counts as no memory.
  // Behind a large block of ours, `room` more bytes of address space are kept, which take no memory until extend() uses
  // them.
  bool allocate(int64_t bytes, Memory from, int64_t room = 0) noexcept;
  // Lengthens the block where it is, if it has room; what it holds stays.
  bool extend(int64_t bytes) noexcept;
  // The last allocate() failed because the host's allocator gave memory that isn't aligned as it must be.
  bool misaligned() const { return misaligned_; }
  // It failed because of the account's limit.
  bool over_limit() const { return over_limit_; }
  void free() noexcept;

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  void* mapping_ = nullptr;  // the whole mapping behind data_, if it is one
  size_t mapping_bytes_ = 0;
  const dhlo_allocator* host_ = nullptr;
  Account* account_ = nullptr;
  bool misaligned_ = false;
  bool over_limit_ = false;

  bool get(int64_t bytes, int64_t room) noexcept;
};

// A part of a file as read-only memory: its pages are the system's, shared by all that map it, and read when they are
// first needed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Once, of an open file, which may be closed afterwards; `populate` reads all of it now. False, with errno, if the
  // file can't be mapped.
  bool map(int fd, int64_t offset, int64_t bytes, bool populate) noexcept;
  // Keeps it in memory. False, with errno, where the process may not.
  bool lock() const noexcept;
  const uint8_t* data() const { return data_; }

 private:
  void* pages_ = nullptr;
  size_t bytes_ = 0;
  const uint8_t* data_ = nullptr;
};

// Bytes to reserve for a block that must hold `needed` and held `held`: grows geometrically so that random shapes
// settle, but never past `budget` unless `needed` itself is.
int64_t grown_bytes(int64_t needed, int64_t held, int64_t budget) noexcept;

}  // namespace dhlo
