// Runs launches on the host's own threads, whatever the host does with the tasks that it is given.
#include "host_threads.hpp"

#include <sched.h>

#include <algorithm>

#include "support.hpp"

namespace dhlo {
namespace {

uint32_t epoch_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

}  // namespace

HostThreads::HostThreads(int64_t threads)
    : threads_(threads), begun_(new std::atomic<uint32_t>[static_cast<size_t>(threads)]) {
  for (int64_t i = 0; i < threads; ++i) begun_[i].store(0);
}

void HostThreads::task(void* self, int64_t worker) {
  auto* threads = static_cast<HostThreads*>(self);
  // Counted before anything is read, so that run() neither returns nor changes the launch under a task that it can't
  // see. A task that comes when its launch is over finds no chunk.
  threads->inside_.fetch_add(1);
  threads->work(worker);
  threads->inside_.fetch_sub(1);
}

void HostThreads::work(int64_t worker) {
  const uint32_t epoch = epoch_of(word_.load());
  if (worker < 0 || worker >= threads_) {
    out_of_range_.store(true);
    return;
  }
  // Two tasks of one number would share scratch: the second has nothing to do.
  uint32_t begun = begun_[worker].load();
  do {
    if (static_cast<int32_t>(begun - epoch) >= 0) return;
  } while (!begun_[worker].compare_exchange_weak(begun, epoch));
  WorkSpan span(worker);  // told before the task is counted out of work(), so while the launch is there
  for (int64_t chunk = 0; claim(epoch, &chunk); finished_.fetch_add(1)) {
    if (worker >= tasks_) out_of_range_.store(true);
    if (launch_.trace != nullptr) {
      span.begin(launch_.trace);
      span.add(launch_.begin(chunk + 1) - launch_.begin(chunk));
    }
    launch_.run_chunk(chunk, worker);
  }
  span.end();
}

bool HostThreads::claim(uint32_t epoch, int64_t* chunk) {
  uint64_t word = word_.load();
  for (;;) {
    const uint64_t next = word & 0xffff, end = word >> 16 & 0xffff;
    if (epoch_of(word) != epoch || next >= end) return false;
    if (word_.compare_exchange_weak(word, word + 1)) {
      *chunk = static_cast<int64_t>(next);
      return true;
    }
  }
}

const char* HostThreads::run(const Launch& launch, const dhlo_parallel& host) noexcept {
  const uint32_t epoch = std::max<uint32_t>(epoch_of(word_.load()) + 1, 1);
  launch_ = launch;
  tasks_ = std::min(launch.chunks, threads_);
  finished_.store(0);
  out_of_range_.store(false);
  word_.store(uint64_t{epoch} << 32 | static_cast<uint64_t>(launch.chunks) << 16);
  bool threw = true;
  const int32_t status = fenced(
      [&] {
        const int32_t result = host.run(host.ctx, tasks_, task, this);
        threw = false;
        return result;
      },
      int32_t{1});
  // Nothing is claimed from here on; what a thread of the host is still computing is waited for, since it writes to
  // memory of this run.
  word_.store(uint64_t{epoch} << 32);
  while (inside_.load() != 0) sched_yield();
  if (threw) return "parallel.run threw an exception";
  if (status != 0) return "parallel.run reported a failure";
  if (out_of_range_.load()) return "parallel.run called a task that is out of range";
  if (finished_.load() != launch.chunks) return "parallel.run returned before all tasks had been run";
  return nullptr;
}

}  // namespace dhlo
