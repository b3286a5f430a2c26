// Whether a run has been told to stop.
#include "stop.hpp"

#include <algorithm>

#include "trace.hpp"

namespace dhlo {

void Stop::begin(int64_t timeout_ns, const volatile int32_t* flag) noexcept {
  limited_ = timeout_ns > 0 || flag != nullptr;
  timeout_ns_ = timeout_ns;
  flag_ = flag;
  const int64_t start = timeout_ns > 0 ? now() : 0;
  end_ns_ = timeout_ns > INT64_MAX - start ? INT64_MAX : start + timeout_ns;
  state_.store(limited_ ? kLimited : kRunning, std::memory_order_release);
}

bool Stop::leave(State to) noexcept {
  int32_t state = state_.load();
  while (state == kRunning || state == kLimited)
    if (state_.compare_exchange_weak(state, to)) return true;
  return false;
}

bool Stop::finish() noexcept {
  // A state that can't be stopped is that of a run that was told to, or of one that has gone this far before.
  return !asked() && (leave(kOver) || state_.load() == kOver);
}

int64_t Stop::left_ns() const noexcept { return timeout_ns_ > 0 ? std::max<int64_t>(end_ns_ - now(), 1) : 0; }

bool Stop::look(int32_t state) noexcept {
  if (state == kLimited) {
    if (flag_ != nullptr && __atomic_load_n(flag_, __ATOMIC_ACQUIRE) != 0)
      leave(kCancelled);
    else if (timeout_ns_ > 0 && now() >= end_ns_)
      leave(kLate);
    else
      return false;
    state = state_.load();
  }
  return state == kCancelled || state == kLate;
}

}  // namespace dhlo
