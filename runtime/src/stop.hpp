// Whether a run has been told to stop.
#pragma once

#include <atomic>
#include <cstdint>

#include "dhlo/runtime.h"

namespace dhlo {

// Asked at each launch, chunk and turn of a loop, by all threads that take part in the run: one relaxed load unless the
// run has a timeout or a flag of its own.
class Stop {
 public:
  // A new run, which may be stopped from now on. 0: no timeout; null: no flag.
  void begin(int64_t timeout_ns, const volatile int32_t* flag) noexcept;
  // Nothing stops the run from here on. False if it was told to stop before.
  bool finish() noexcept;
  // The run is over, stopped or not.
  void end() noexcept { state_.store(kOver, std::memory_order_release); }
  // Stops the run in progress, if there is one that can still be stopped. From any thread.
  void cancel() noexcept { leave(kCancelled); }

  bool asked() noexcept {
    const int32_t state = state_.load(std::memory_order_relaxed);
    return state != kRunning && look(state);
  }
  // It has a timeout or a flag: its launches are cut finely.
  bool limited() const noexcept { return limited_; }
  // Why it was told to: DHLO_CANCELLED or DHLO_DEADLINE.
  dhlo_status why() const noexcept { return state_.load() == kLate ? DHLO_DEADLINE : DHLO_CANCELLED; }
  int64_t timeout_ns() const noexcept { return timeout_ns_; }
  // Until the timeout, at least 1; 0 without one.
  int64_t left_ns() const noexcept;

 private:
  enum State : int32_t { kRunning, kLimited, kCancelled, kLate, kOver };
  bool look(int32_t state) noexcept;
  // From a state in which the run can be stopped; false if it isn't in one.
  bool leave(State to) noexcept;

  std::atomic<int32_t> state_{kOver};
  bool limited_ = false;
  int64_t timeout_ns_ = 0;
  int64_t end_ns_ = 0;
  const volatile int32_t* flag_ = nullptr;
};

}  // namespace dhlo
