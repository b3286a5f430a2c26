// Spans of time that a host's trace function is told of.
#pragma once

#include <cstdint>

#include "dhlo/runtime.h"

namespace dhlo {

// Nanoseconds of CLOCK_MONOTONIC.
int64_t now() noexcept;

// Whom to tell, and of which launch of which run. Lives as long as the launch.
struct LaunchTrace {
  dhlo_trace_fn fn = nullptr;
  void* ctx = nullptr;
  const dhlo_session* session = nullptr;
  const char* name = "";
  int64_t run = 0;
  int64_t launch = -1;

  // A span that ends now, on the calling thread.
  void tell(dhlo_trace_kind kind, int64_t begin_ns, int64_t items, int64_t worker, dhlo_status status) const noexcept;
};

// What a thread does of a launch: begins with its first chunk, and is told when it has no more. Nothing without a
// trace.
class WorkSpan {
 public:
  explicit WorkSpan(int64_t worker) : worker_(worker) {}
  void begin(const LaunchTrace* trace) {
    if (trace_ != nullptr || trace == nullptr) return;
    trace_ = trace;
    begin_ns_ = now();
  }
  void add(int64_t items) { items_ += items; }
  bool active() const { return trace_ != nullptr; }
  void end() {
    if (trace_ != nullptr) trace_->tell(DHLO_TRACE_WORK, begin_ns_, items_, worker_, DHLO_OK);
    trace_ = nullptr;
    items_ = 0;
  }

 private:
  const int64_t worker_;
  const LaunchTrace* trace_ = nullptr;
  int64_t begin_ns_ = 0;
  int64_t items_ = 0;
};

}  // namespace dhlo
