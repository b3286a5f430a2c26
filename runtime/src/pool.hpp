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

// How threads are made, and where they may run.
struct Threads {
  dhlo_create_thread_fn create = nullptr;  // null: by pthread_create
  dhlo_join_thread_fn join = nullptr;
  void* ctx = nullptr;
  std::vector<int32_t> processors;  // none: where the thread that starts them may run
};

// Starts `main(arg)` on a thread of its own; false if there is none to be had. What it is to be joined by is appended
// to one of the lists: room for it must be there.
bool start_thread(const Threads& how, const char* name, void (*main)(void*), void* arg, std::vector<pthread_t>* own,
                  std::vector<void*>* hosts) noexcept;
void join_threads(const Threads& how, const std::vector<pthread_t>& own, const std::vector<void*>& hosts) noexcept;

// `threads` workers, of which worker 0 is whoever calls run(). The others start with the first run, spin briefly for
// work and then park. Chunks are claimed, never assigned, so the caller never waits for a thread that is not already
// working on one. Several callers have a launch at once: each works on its own, and the other workers take a chunk of
// each in turn. Thread-safe; after a fork the child starts its own threads.
class Pool {
 public:
  static constexpr int64_t kMaxChunks = 0xffff;
  static constexpr int64_t kMaxThreads = 1024;
  static constexpr int kJobs = 8;  // launches at once

  // The pool with that many threads, shared by all who ask while it lives.
  static std::shared_ptr<Pool> get(int64_t threads);
  // One of its own.
  static std::shared_ptr<Pool> make(int64_t threads, Threads how);
  // DHLO_NUM_THREADS, else `wanted` if positive, else the number of processors that this process may use: by its
  // affinity and by the quota of its control group.
  static int64_t resolve_threads(int64_t wanted);

  explicit Pool(int64_t threads, Threads how = {});
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  int64_t threads() const { return threads_; }
  // Runs the launch on caller and workers and returns true when it is done; false, having done nothing, if the pool has
  // as many launches as it can take.
  bool run(const Launch& launch);
  // In the child of a fork: forgets the parent's threads.
  void after_fork();

 private:
  // The chunks that a worker takes first; others help themselves when they have run out. One word, so that a claim and
  // the launch that it belongs to are read and changed at once: epoch (32 bits) | end (16) | next (16).
  struct alignas(128) Span {
    std::atomic<uint64_t> word{0};
  };
  // A launch in progress. What isn't atomic belongs to the caller that has taken it.
  struct alignas(128) Job {
    Launch launch{};  // written while no chunk is claimed
    std::unique_ptr<Span[]> spans;
    uint32_t bit = 0;  // in taken_
    uint32_t epoch = 0;
    int unhelped = 0;                            // launches in a row that no worker on another processor took part in
    alignas(128) std::atomic<uint32_t> done{0};  // chunks of the launch finished by workers; futex of the caller
    std::atomic<bool> caller_parked{false};
    std::atomic<int> caller_cpu{-1};    // processor on which the launch began
    std::atomic<bool> in_turns{false};  // a worker ran a chunk of it there
  };
  struct Start {
    Pool* pool;
    int64_t worker;
  };
  // Where a worker may run: at most where the thread that started it might, and less once somebody says so.
  struct Worker {
    cpu_set_t allowed;
    cpu_set_t given;  // as it was last set by us; another mask since then is somebody's wish
  };

  static void thread_main(void* start);
  void start_threads();
  void work(int64_t worker);
  void wait_for_signal(uint32_t seen);
  Job* take_job();
  bool claim(Span& span, int64_t* chunk);
  bool help(int64_t worker, int* job);
  int64_t run_claimed(Job& job, int64_t worker);
  void count_done(Job& job, uint32_t chunks);
  void wait_for_chunks(Job& job, uint32_t chunks);
  void keep_apart();

  const int64_t threads_;
  const Threads how_;
  std::unique_ptr<Job[]> jobs_;
  std::unique_ptr<Start[]> starts_;
  std::vector<pthread_t> handles_;
  std::vector<void*> hosts_handles_;
  std::vector<Worker> workers_;       // of handles_
  std::atomic<bool> started_{false};  // all that were to be had
  std::atomic<bool> placing_{false};  // somebody starts or moves threads
  int avoided_ = -1;                  // processor that workers keep off; guarded by placing_

  alignas(128) std::atomic<uint32_t> taken_{0};   // jobs, by bits
  alignas(128) std::atomic<uint32_t> signal_{0};  // changes with every launch; futex of parked workers
  std::atomic<int32_t> parked_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace dhlo
