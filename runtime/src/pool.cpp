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
  registry().mutex.unlock();
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
  static const int forks = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
  static_cast<void>(forks);
  std::lock_guard<std::mutex> lock(all.mutex);
  std::weak_ptr<Pool>& slot = all.pools[threads];
  std::shared_ptr<Pool> pool = slot.lock();
  if (pool == nullptr) slot = pool = std::make_shared<Pool>(threads);
  return pool;
}

Pool::Pool(int64_t threads) : threads_(threads), spans_(new Span[threads]), starts_(new Start[threads]) {
  workers_.reserve(static_cast<size_t>(threads));  // so that starting threads allocates nothing of ours
}

Pool::~Pool() {
  stop_.store(true);
  signal_.fetch_add(1);
  futex_wake(signal_, INT_MAX);
  for (const Worker& worker : workers_) pthread_join(worker.handle, nullptr);
}

void Pool::after_fork() {
  workers_.clear();
  started_ = false;
  avoided_ = -1;
  parked_.store(0);
  done_.store(0);
  caller_parked_.store(false);
  for (int64_t w = 0; w < threads_; ++w) spans_[w].word.store(0);
  busy_.store(false);
}

void Pool::start_threads() {
  started_ = true;
  // Signals are for the host's threads, except those that tell of a fault of the very thread: blocked, they would kill
  // the process without the host's handler.
  sigset_t others, old;
  sigfillset(&others);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&others, fault);
  pthread_sigmask(SIG_SETMASK, &others, &old);
  cpu_set_t inherited;
  CPU_ZERO(&inherited);
  sched_getaffinity(0, sizeof inherited, &inherited);
  for (int64_t worker = 1; worker < threads_; ++worker) {
    starts_[worker] = {this, worker};
    pthread_t handle;
    // Without the thread the others take its chunks.
    if (pthread_create(&handle, nullptr, thread_main, &starts_[worker]) != 0) break;
    pthread_setname_np(handle, "dhlo-worker");
    workers_.push_back({handle, inherited, inherited});
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void* Pool::thread_main(void* start) {
  const Start& s = *static_cast<Start*>(start);
  s.pool->work(s.worker);
  return nullptr;
}

void Pool::work(int64_t worker) {
  for (;;) {
    const uint32_t seen = signal_.load();
    if (stop_.load()) return;
    if (run_claimed(worker) == 0) wait_for_signal(seen);
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

void Pool::count_done(uint32_t chunks) {
  done_.fetch_add(chunks);
  if (caller_parked_.load()) futex_wake(done_, 1);
}

// Runs chunks until none is left to claim; returns how many. A claimed chunk keeps launch_ as it is until it is counted
// in done_ (or, for the caller, until it returns), so launch_ is read only in between: what a worker does of a traced
// launch is counted when it has been told.
int64_t Pool::run_claimed(int64_t worker) {
  int64_t ran = 0;
  uint32_t uncounted = 0;
  WorkSpan span(worker);
  for (int64_t i = 0; i < threads_; ++i) {
    Span& chunks = spans_[(worker + i) % threads_];
    for (int64_t chunk = 0; claim(chunks, &chunk); ++ran) {
      if (launch_.trace != nullptr) {
        span.begin(launch_.trace);
        span.add(launch_.begin(chunk + 1) - launch_.begin(chunk));
      }
      launch_.run_chunk(chunk, worker);
      if (worker == 0) continue;
      if (ran == 0 && sched_getcpu() == caller_cpu_.load(std::memory_order_relaxed))
        in_turns_.store(true, std::memory_order_relaxed);
      if (span.active())
        ++uncounted;
      else
        count_done(1);
    }
  }
  span.end();
  if (uncounted > 0) count_done(uncounted);
  return ran;
}

void Pool::wait_for_chunks(uint32_t chunks) {
  auto finished = [this, chunks] { return done_.load(std::memory_order_acquire) == chunks; };
  if (spin(kCallerSpin, finished)) return;
  for (int i = 0; i < kCallerYields; ++i) {
    sched_yield();
    if (finished()) return;
  }
  caller_parked_.store(true);
  for (uint32_t seen = done_.load(); seen != chunks; seen = done_.load()) futex_wait(done_, seen);
  caller_parked_.store(false);
}

// A kernel that wakes a thread on its waker's processor, while others are taken, would leave workers waiting there for
// as long as the caller runs, or let the two run in turns. So keep them off the processor that the caller is on, within
// what they were given by whoever started them or has placed them since.
void Pool::keep_apart() {
  unhelped_ = 0;
  const int here = sched_getcpu();
  if (here < 0 || here == avoided_) return;
  avoided_ = here;
  for (Worker& worker : workers_) {
    cpu_set_t now;
    if (pthread_getaffinity_np(worker.handle, sizeof now, &now) != 0) continue;
    if (!CPU_EQUAL(&now, &worker.given)) worker.allowed = worker.given = now;
    cpu_set_t others = worker.allowed;
    CPU_CLR(static_cast<size_t>(here), &others);
    if (CPU_COUNT(&others) == 0 || pthread_setaffinity_np(worker.handle, sizeof others, &others) != 0) continue;
    // What the kernel made of it: a cpuset may leave less.
    if (pthread_getaffinity_np(worker.handle, sizeof now, &now) == 0) worker.given = now;
  }
}

bool Pool::run(const Launch& launch) {
  if (busy_.exchange(true, std::memory_order_acquire)) return false;
  if (!started_) start_threads();
  launch_ = launch;
  done_.store(0, std::memory_order_relaxed);
  caller_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
  in_turns_.store(false, std::memory_order_relaxed);
  ++epoch_;
  const int64_t chunks = launch.chunks;
  for (int64_t w = 0; w < threads_; ++w)
    spans_[w].word.store(pack(epoch_, chunks * (w + 1) / threads_, chunks * w / threads_), std::memory_order_release);
  signal_.fetch_add(1);
  if (parked_.load() > 0) futex_wake(signal_, static_cast<int>(std::min(threads_, chunks) - 1));
  const int64_t own = run_claimed(0);
  const int64_t waiting = launch.trace != nullptr && own < chunks ? now() : 0;
  wait_for_chunks(static_cast<uint32_t>(chunks - own));
  if (waiting != 0) launch.trace->tell(DHLO_TRACE_WAIT, waiting, 0, 0, DHLO_OK);
  unhelped_ = (own == chunks && chunks > 1) || in_turns_.load(std::memory_order_relaxed) ? unhelped_ + 1 : 0;
  if (unhelped_ >= kApartLaunches) keep_apart();
  busy_.store(false, std::memory_order_release);
  return true;
}

}  // namespace dhlo
