// Memory of pools before it is needed.
#include "populate.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

namespace dhlo::serve {
namespace {

constexpr int64_t kAhead = 512;  // blocks; of 16 slots with 64 numbers of f32 each, a huge page of every head

}  // namespace

Populator::~Populator() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Populator::start(std::vector<PoolMemory> pools, int64_t groups, int64_t blocks) {
  pools_ = std::move(pools);
  blocks_ = blocks;
  const auto count = static_cast<size_t>(groups);
  told_.assign(count, 0);
  done_.assign(count, 0);
  wanted_.assign(count, std::min(kAhead, blocks));
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // there are no threads: steps wait for their memory
  }
}

void Populator::reached(int64_t group, int64_t block) noexcept {
  int64_t& told = told_[static_cast<size_t>(group)];
  if (block <= told) return;
  told = block;
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t& wanted = wanted_[static_cast<size_t>(group)];
  if (block + kAhead / 2 <= wanted || wanted == blocks_) return;
  wanted = std::min(block + kAhead, blocks_);
  changed_.notify_one();
}

void Populator::run() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    size_t group = 0;
    while (group < wanted_.size() && done_[group] >= wanted_[group]) ++group;
    if (group == wanted_.size()) {
      changed_.wait_for(lock, std::chrono::hours(24));  // a wait without a limit lacks on older systems
      continue;
    }
    const int64_t first = done_[group], end = wanted_[group];
    done_[group] = end;
    lock.unlock();
    const bool given = populate(static_cast<int64_t>(group), first, end);
    lock.lock();
    if (!given) return;
  }
}

// False if the system knows no such call, or has no memory.
bool Populator::populate(int64_t group, int64_t first, int64_t end) noexcept {
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const PoolMemory& pool : pools_) {
    if (pool.group != group) continue;
    for (int64_t head = 0; head < pool.heads; ++head) {
      const auto data = reinterpret_cast<uintptr_t>(pool.data + head * pool.head_bytes);
      // Whole pages: those that parts of the range lie in were the range's before it, or will be the next one's.
      const uintptr_t from = (data + static_cast<uintptr_t>(first * pool.block_bytes) + page - 1) & ~(page - 1);
      const uintptr_t to = (data + static_cast<uintptr_t>(end * pool.block_bytes)) & ~(page - 1);
      if (from >= to) continue;
      if (madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE) != 0) return false;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return true;
    }
  }
  return true;
#else
  (void)group, (void)first, (void)end;
  return false;
#endif
}

}  // namespace dhlo::serve
