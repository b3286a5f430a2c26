// Runs launches on the host's own threads, whatever the host does with the tasks that it is given.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "dhlo/runtime.h"
#include "pool.hpp"

namespace dhlo {

// The host is handed one task a thread, so that the task's number can serve as the worker's; each claims chunks until
// none is left. What was run is counted here, and nothing that the host says is believed. For one launch at a time.
class HostThreads {
 public:
  explicit HostThreads(int64_t threads);

  // Null when the launch is done, else what the host did wrong. Throws nothing.
  const char* run(const Launch& launch, const dhlo_parallel& host) noexcept;

 private:
  static void task(void* self, int64_t worker);
  void work(int64_t worker);
  bool claim(uint32_t epoch, int64_t* chunk);

  const int64_t threads_;
  std::unique_ptr<std::atomic<uint32_t>[]> begun_;  // epoch of the last launch in which the task was begun
  Launch launch_{};
  int64_t tasks_ = 0;
  std::atomic<uint64_t> word_{0};     // epoch (32 bits) | end (16) | next (16), as in Pool
  std::atomic<int64_t> inside_{0};    // threads that are in work() now
  std::atomic<int64_t> finished_{0};  // chunks of the launch
  std::atomic<bool> out_of_range_{false};
};

}  // namespace dhlo
