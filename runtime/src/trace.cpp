// Spans of time that a host's trace function is told of.
#include "trace.hpp"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "support.hpp"

namespace dhlo {

int64_t now() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void LaunchTrace::tell(dhlo_trace_kind kind, int64_t begin_ns, int64_t items, int64_t worker,
                       dhlo_status status) const noexcept {
  dhlo_trace_event event{};
  event.struct_bytes = sizeof event;
  event.kind = kind;
  event.name = name;
  event.begin_ns = begin_ns;
  event.end_ns = now();
  event.session = session;
  event.run = run;
  event.launch = launch;
  event.items = items;
  event.worker = static_cast<int32_t>(worker);
  event.thread = static_cast<int32_t>(syscall(SYS_gettid));
  event.status = status;
  fenced([&] { return fn(ctx, &event), true; }, false);
}

}  // namespace dhlo
