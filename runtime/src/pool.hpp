// Threads that run one kernel at a time over chunks of its iteration space.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "dhlo/runtime.h"
#include "stop.hpp"
#include "trace.hpp"

namespace dhlo {

// One kernel over [0, count).
struct Launch {
  dhlo_kernel fn;
  const int64_t* args;
  int64_t count;
  int64_t chunks;  // in [1, kMaxChunks]; chunk c is [count * c / chunks, count * (c + 1) / chunks)
  uint8_t* scratch;
  int64_t scratch_stride;  // bytes from one worker's scratch to the next
  Stop* stop = nullptr;    // of its run, where it may still be stopped
  const LaunchTrace* trace = nullptr;

  // count * chunk / chunks without overflow. What doesn't divide evenly is spread over all chunks, so that threads get
  // equal parts.
  int64_t begin(int64_t chunk) const { return count / chunks * chunk + count % chunks * chunk / chunks; }
  // Does nothing where the run was told to stop.
  void run_chunk(int64_t chunk, int64_t worker) const {
    if (stop != nullptr && stop->asked()) return;
    fn(args, begin(chunk), begin(chunk + 1), worker, scratch + worker * scratch_stride);
  }
};

// `threads` workers, of which worker 0 is whoever calls run(). The others start with the first run, spin briefly for
// work and then park. Chunks are claimed, never assigned, so the caller never waits for a thread that is not already
// working on one. Thread-safe; after a fork the child starts its own threads.
class Pool {
 public:
  static constexpr int64_t kMaxChunks = 0xffff;
  static constexpr int64_t kMaxThreads = 1024;

  // The pool with that many threads, shared by all who ask while it lives.
  static std::shared_ptr<Pool> get(int64_t threads);
  // DHLO_NUM_THREADS, else `wanted` if positive, else the number of processors that this process may use: by its
  // affinity and by the quota of its control group.
  static int64_t resolve_threads(int64_t wanted);

  explicit Pool(int64_t threads);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  int64_t threads() const { return threads_; }
  // Runs the launch on caller and workers and returns true when it is done; false, having done nothing, if the pool is
  // busy.
  bool run(const Launch& launch);
  // In the child of a fork: forgets the parent's threads.
  void after_fork();

 private:
  // The chunks that a worker takes first; others help themselves when they have run out. One word, so that a claim and
  // the launch that it belongs to are read and changed at once: epoch (32 bits) | end (16) | next (16).
  struct alignas(128) Span {
    std::atomic<uint64_t> word{0};
  };
  struct Start {
    Pool* pool;
    int64_t worker;
  };
  // Where a worker may run: at most where the thread that started it might, and less once somebody says so.
  struct Worker {
    pthread_t handle;
    cpu_set_t allowed;
    cpu_set_t given;  // as it was last set by us; another mask since then is somebody's wish
  };

  static void* thread_main(void* start);
  void start_threads();
  void work(int64_t worker);
  void wait_for_signal(uint32_t seen);
  bool claim(Span& span, int64_t* chunk);
  int64_t run_claimed(int64_t worker);
  void count_done(uint32_t chunks);
  void wait_for_chunks(uint32_t chunks);
  void keep_apart();

  const int64_t threads_;
  std::unique_ptr<Span[]> spans_;
  std::unique_ptr<Start[]> starts_;
  std::vector<Worker> workers_;
  bool started_ = false;  // guarded by busy_
  uint32_t epoch_ = 0;    // guarded by busy_
  int unhelped_ = 0;      // launches in a row that no worker on another processor took part in; guarded by busy_
  int avoided_ = -1;      // processor that workers keep off; guarded by busy_
  Launch launch_{};       // written by the caller that holds busy_ while no chunk is claimed

  alignas(128) std::atomic<bool> busy_{false};
  alignas(128) std::atomic<uint32_t> signal_{0};  // changes with every launch; futex of parked workers
  std::atomic<int32_t> parked_{0};
  std::atomic<bool> stop_{false};
  alignas(128) std::atomic<uint32_t> done_{0};  // chunks of the current launch finished by workers; futex of the caller
  std::atomic<bool> caller_parked_{false};
  std::atomic<int> caller_cpu_{-1};    // processor on which the current launch began
  std::atomic<bool> in_turns_{false};  // a worker ran a chunk of it there
};

}  // namespace dhlo
