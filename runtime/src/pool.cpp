// Threads that run one kernel at a time over chunks of its iteration space.
#include "pool.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <mutex>

#include "cgroup.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

// How long threads wait before they give up their processor, in ns. What decides it isn't the machine: an idle worker
// waits for as long as hosts usually take between two calls, and the caller for a chunk of a usual size, which must
// only be some times what the system takes to wake a thread, 50'000 or so, to cost little beside it.
constexpr int64_t kWorkerSpin = 200'000;
constexpr int64_t kCallerSpin = 100'000;
constexpr int kApartLaunches = 3;  // in a row without help from another processor, before workers are moved there
constexpr int kCallerYields = 64;  // and how often it yields before it parks

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Spins until `ready` or until `limit` ns have passed; returns the last answer.
template <class Ready>
bool spin(int64_t limit, Ready ready) {
  if (ready()) return true;
  const int64_t end = now() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      pause_briefly();
      if (ready()) return true;
    }
  } while (now() < end);
  return false;
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int threads) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

uint64_t pack(uint32_t epoch, int64_t end, int64_t next) {
  return uint64_t{epoch} << 32 | static_cast<uint64_t>(end) << 16 | static_cast<uint64_t>(next);
}

// Live pools by thread count. Never destroyed, since pools may outlive static destructors.
struct Registry {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<Pool>> pools;
  std::vector<std::weak_ptr<Pool>> others;
};

Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

// Holding the mutex across the fork keeps the map whole in the child.
void before_fork() { registry().mutex.lock(); }
void after_fork_parent() { registry().mutex.unlock(); }
void after_fork_child() {
  for (auto& entry : registry().pools)
    if (auto pool = entry.second.lock()) pool->after_fork();
  for (auto& other : registry().others)
    if (auto pool = other.lock()) pool->after_fork();
  registry().mutex.unlock();
}

void watch_forks() {
  static const int forks = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
  static_cast<void>(forks);
}

}  // namespace

int64_t Pool::resolve_threads(int64_t wanted) {
  if (const char* text = std::getenv("DHLO_NUM_THREADS"); text != nullptr && *text != 0) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end != 0 || value < 1 || value > kMaxThreads)
      throw Error(DHLO_INVALID_ARGUMENT,
                  "DHLO_NUM_THREADS: expected a number from 1 to 1024, got '" + std::string(text) + "'");
    return value;
  }
  if (wanted < 0 || wanted > kMaxThreads)
    throw Error(DHLO_INVALID_ARGUMENT, "num_threads: expected 0 (all) to 1024, got " + std::to_string(wanted));
  if (wanted > 0) return wanted;
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  const int64_t processors = known ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
  return std::clamp<int64_t>(std::min(processors, cgroup_processors()), 1, kMaxThreads);
}

std::shared_ptr<Pool> Pool::get(int64_t threads) {
  Registry& all = registry();
  watch_forks();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::weak_ptr<Pool>& slot = all.pools[threads];
  std::shared_ptr<Pool> pool = slot.lock();
  if (pool == nullptr) slot = pool = std::make_shared<Pool>(threads);
  return pool;
}

std::shared_ptr<Pool> Pool::make(int64_t threads, Threads how) {
  Registry& all = registry();
  watch_forks();
  auto pool = std::make_shared<Pool>(threads, std::move(how));
  std::lock_guard<std::mutex> lock(all.mutex);
  auto gone = [](const std::weak_ptr<Pool>& other) { return other.expired(); };
  all.others.erase(std::remove_if(all.others.begin(), all.others.end(), gone), all.others.end());
  all.others.push_back(pool);
  return pool;
}

bool start_thread(const Threads& how, const char* name, void (*main)(void*), void* arg, std::vector<pthread_t>* own,
                  std::vector<void*>* hosts) noexcept {
  if (how.create != nullptr) {
    void* handle = fenced([&] { return how.create(how.ctx, name, main, arg); }, static_cast<void*>(nullptr));
    if (handle != nullptr) hosts->push_back(handle);
    return handle != nullptr;
  }
  // Signals are for the host's threads, except those that tell of a fault of the very thread: blocked, they would kill
  // the process without the host's handler.
  sigset_t others, old;
  sigfillset(&others);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&others, fault);
  struct Body {
    void (*main)(void*);
    void* arg;
  };
  auto* body = new (std::nothrow) Body{main, arg};
  if (body == nullptr) return false;
  pthread_sigmask(SIG_SETMASK, &others, &old);
  pthread_t handle;
  const int failed = pthread_create(
      &handle, nullptr,
      [](void* given) -> void* {
        const std::unique_ptr<Body> mine(static_cast<Body*>(given));
        mine->main(mine->arg);
        return nullptr;
      },
      body);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (failed != 0) {
    delete body;
    return false;
  }
  pthread_setname_np(handle, name);
  if (!how.processors.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int32_t processor : how.processors) CPU_SET(static_cast<size_t>(processor), &set);
    pthread_setaffinity_np(handle, sizeof set, &set);
  }
  own->push_back(handle);
  return true;
}

void join_threads(const Threads& how, const std::vector<pthread_t>& own, const std::vector<void*>& hosts) noexcept {
  for (const pthread_t& handle : own) pthread_join(handle, nullptr);
  for (void* handle : hosts) fenced([&] { return how.join(how.ctx, handle), true; }, false);
}

Pool::Pool(int64_t threads, Threads how)
    : threads_(threads), how_(std::move(how)), jobs_(new Job[kJobs]), starts_(new Start[threads]) {
  for (int i = 0; i < kJobs; ++i) {
    jobs_[i].spans.reset(new Span[static_cast<size_t>(threads)]);
    jobs_[i].bit = 1u << i;
  }
  // So that starting threads allocates nothing of ours that lasts.
  handles_.reserve(static_cast<size_t>(threads));
  hosts_handles_.reserve(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads));
}

Pool::~Pool() {
  stop_.store(true);
  signal_.fetch_add(1);
  futex_wake(signal_, INT_MAX);
  join_threads(how_, handles_, hosts_handles_);
}

void Pool::after_fork() {
  handles_.clear();
  hosts_handles_.clear();
  workers_.clear();
  avoided_ = -1;
  parked_.store(0);
  for (int i = 0; i < kJobs; ++i) {
    Job& job = jobs_[i];
    job.done.store(0);
    job.caller_parked.store(false);
    for (int64_t w = 0; w < threads_; ++w) job.spans[w].word.store(0);
  }
  taken_.store(0);
  placing_.store(false);
  started_.store(false);
}

void Pool::start_threads() {
  if (placing_.exchange(true)) return;  // another caller is at it
  if (!started_.load()) {
    for (int64_t worker = 1; worker < threads_; ++worker) {
      starts_[worker] = {this, worker};
      // Without the thread the others take its chunks.
      if (!start_thread(how_, "dhlo-worker", thread_main, &starts_[worker], &handles_, &hosts_handles_)) break;
      if (handles_.empty()) continue;
      cpu_set_t inherited;
      CPU_ZERO(&inherited);
      pthread_getaffinity_np(handles_.back(), sizeof inherited, &inherited);
      workers_.push_back({inherited, inherited});
    }
    started_.store(true);
  }
  placing_.store(false);
}

void Pool::thread_main(void* start) {
  const Start& s = *static_cast<Start*>(start);
  s.pool->work(s.worker);
}

void Pool::work(int64_t worker) {
  int job = 0;  // whose turn it is
  for (;;) {
    const uint32_t seen = signal_.load();
    if (stop_.load()) return;
    if (!help(worker, &job)) wait_for_signal(seen);
  }
}

void Pool::wait_for_signal(uint32_t seen) {
  auto changed = [this, seen] { return signal_.load(std::memory_order_relaxed) != seen; };
  if (spin(kWorkerSpin, changed)) return;
  // Sequentially consistent on both sides: either we see the new signal or the caller sees us parked.
  parked_.fetch_add(1);
  while (signal_.load() == seen) futex_wait(signal_, seen);
  parked_.fetch_sub(1);
}

bool Pool::claim(Span& span, int64_t* chunk) {
  uint64_t word = span.word.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t next = word & 0xffff, end = word >> 16 & 0xffff;
    if (next >= end) return false;
    if (span.word.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      *chunk = static_cast<int64_t>(next);
      return true;
    }
  }
}

// Goes once through the launches in progress, from `*next` on, and does something of each; false if there was nothing.
bool Pool::help(int64_t worker, int* next) {
  const uint32_t taken = taken_.load(std::memory_order_acquire);
  bool any = false;
  for (int i = 0; i < kJobs; ++i) {
    Job& job = jobs_[(*next + i) % kJobs];
    if ((taken & job.bit) != 0) any |= run_claimed(job, worker) > 0;
  }
  *next = (*next + 1) % kJobs;
  return any;
}

void Pool::count_done(Job& job, uint32_t chunks) {
  job.done.fetch_add(chunks);
  if (job.caller_parked.load()) futex_wake(job.done, 1);
}

// Runs chunks until none is left to claim, or, but for the caller, other launches are waiting, too; returns how many. A
// claimed chunk keeps the launch as it is until it is counted in `done` (or, for the caller, until it returns), so it
// is read only in between: what a worker does of a traced launch is counted when it has been told.
int64_t Pool::run_claimed(Job& job, int64_t worker) {
  int64_t ran = 0;
  uint32_t uncounted = 0;
  bool turn = true;
  WorkSpan span(worker);
  for (int64_t i = 0; i < threads_ && turn; ++i) {
    Span& chunks = job.spans[(worker + i) % threads_];
    for (int64_t chunk = 0; turn && claim(chunks, &chunk); ++ran) {
      const Launch& launch = job.launch;
      if (launch.trace != nullptr) {
        span.begin(launch.trace);
        span.add(launch.begin(chunk + 1) - launch.begin(chunk));
      }
      launch.run_chunk(chunk, worker);
      if (worker == 0) continue;
      if (ran == 0 && sched_getcpu() == job.caller_cpu.load(std::memory_order_relaxed))
        job.in_turns.store(true, std::memory_order_relaxed);
      if (span.active())
        ++uncounted;
      else
        count_done(job, 1);
      turn = taken_.load(std::memory_order_relaxed) == job.bit;
    }
  }
  span.end();
  if (uncounted > 0) count_done(job, uncounted);
  return ran;
}

void Pool::wait_for_chunks(Job& job, uint32_t chunks) {
  auto finished = [&job, chunks] { return job.done.load(std::memory_order_acquire) == chunks; };
  if (spin(kCallerSpin, finished)) return;
  for (int i = 0; i < kCallerYields; ++i) {
    sched_yield();
    if (finished()) return;
  }
  job.caller_parked.store(true);
  for (uint32_t seen = job.done.load(); seen != chunks; seen = job.done.load()) futex_wait(job.done, seen);
  job.caller_parked.store(false);
}

// A kernel that wakes a thread on its waker's processor, while others are taken, would leave workers waiting there for
// as long as the caller runs, or let the two run in turns. So keep them off the processor that the caller is on, within
// what they were given by whoever started them or has placed them since.
void Pool::keep_apart() {
  const int here = sched_getcpu();
  if (here < 0 || placing_.exchange(true)) return;
  if (here != avoided_) {
    avoided_ = here;
    for (size_t w = 0; w < workers_.size(); ++w) {
      Worker& worker = workers_[w];
      cpu_set_t now;
      if (pthread_getaffinity_np(handles_[w], sizeof now, &now) != 0) continue;
      if (!CPU_EQUAL(&now, &worker.given)) worker.allowed = worker.given = now;
      cpu_set_t others = worker.allowed;
      CPU_CLR(static_cast<size_t>(here), &others);
      if (CPU_COUNT(&others) == 0 || pthread_setaffinity_np(handles_[w], sizeof others, &others) != 0) continue;
      // What the kernel made of it: a cpuset may leave less.
      if (pthread_getaffinity_np(handles_[w], sizeof now, &now) == 0) worker.given = now;
    }
  }
  placing_.store(false);
}

// The first that is free, so that callers who come one by one have the same; null if all are taken.
Pool::Job* Pool::take_job() {
  uint32_t taken = taken_.load(std::memory_order_relaxed);
  for (;;) {
    const uint32_t free = ~taken & ((1u << kJobs) - 1);
    if (free == 0) return nullptr;
    const uint32_t bit = free & (0 - free);
    if (taken_.compare_exchange_weak(taken, taken | bit, std::memory_order_acquire, std::memory_order_relaxed))
      return &jobs_[__builtin_ctz(bit)];
  }
}

bool Pool::run(const Launch& launch) {
  Job* const taken = take_job();
  if (taken == nullptr) return false;
  Job& job = *taken;
  if (!started_.load(std::memory_order_acquire)) start_threads();
  job.launch = launch;
  job.done.store(0, std::memory_order_relaxed);
  job.caller_cpu.store(sched_getcpu(), std::memory_order_relaxed);
  job.in_turns.store(false, std::memory_order_relaxed);
  ++job.epoch;
  const int64_t chunks = launch.chunks;
  for (int64_t w = 0; w < threads_; ++w)
    job.spans[w].word.store(pack(job.epoch, chunks * (w + 1) / threads_, chunks * w / threads_),
                            std::memory_order_release);
  signal_.fetch_add(1);
  if (parked_.load() > 0) futex_wake(signal_, static_cast<int>(std::min(threads_, chunks) - 1));
  const int64_t own = run_claimed(job, 0);
  const int64_t waiting = launch.trace != nullptr && own < chunks ? now() : 0;
  wait_for_chunks(job, static_cast<uint32_t>(chunks - own));
  if (waiting != 0) launch.trace->tell(DHLO_TRACE_WAIT, waiting, 0, 0, DHLO_OK);
  const bool alone = (own == chunks && chunks > 1) || job.in_turns.load(std::memory_order_relaxed);
  // Beside other callers' launches it says nothing.
  job.unhelped = alone && taken_.load(std::memory_order_relaxed) == job.bit ? job.unhelped + 1 : 0;
  if (job.unhelped >= kApartLaunches) {
    job.unhelped = 0;
    keep_apart();
  }
  taken_.fetch_and(~job.bit, std::memory_order_release);
  return true;
}

}  // namespace dhlo
