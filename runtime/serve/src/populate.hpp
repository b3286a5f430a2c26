// Memory of pools before it is needed: the system zeroes a huge page when it is first written to, and a step would
// wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace dhlo::serve {

// A pool's memory: block b of head h lies at data + h * head_bytes + b * block_bytes.
struct PoolMemory {
  uint8_t* data;
  int64_t heads, head_bytes, block_bytes, group;
};

// Asks the system for the memory of blocks that are taken soon, on a thread. Where it gives none, nothing is different.
class Populator {
 public:
  Populator() = default;
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;
  ~Populator();

  // Once; the memory must outlive this. Each group has so many blocks, which are taken in order.
  void start(std::vector<PoolMemory> pools, int64_t groups, int64_t blocks);
  // Blocks of the group below this one have been taken. Never waits for memory.
  void reached(int64_t group, int64_t block) noexcept;

 private:
  void run() noexcept;
  bool populate(int64_t group, int64_t first, int64_t end) noexcept;

  std::vector<PoolMemory> pools_;
  int64_t blocks_ = 0;
  std::vector<int64_t> told_;  // by group: what `reached` was last told; of the caller's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> wanted_, done_;  // by group: blocks below these
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace dhlo::serve
