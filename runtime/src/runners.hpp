// Threads that run what hosts don't want to wait for.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "pool.hpp"

namespace dhlo {

// Waits until `done()`. The C++ library's own wait without a limit came with GCC 12, and systems with glibc 2.34 lack
// it.
template <class Done>
void wait_until(std::condition_variable& signal, std::unique_lock<std::mutex>& lock, Done done) {
  while (!signal.wait_for(lock, std::chrono::hours(24), done)) {
  }
}

// Something to run, once. Its memory is whoever's that posts it, at least until `run` is called.
struct Task {
  virtual ~Task() = default;
  virtual void run() noexcept = 0;
  Task* next = nullptr;
};

// Tasks are begun in their order, by at most `most` threads, which start when there is work for them and stay. Those of
// a process are forgotten by a child that it forks.
class Runners {
 public:
  explicit Runners(int64_t most, Threads how = {});
  Runners(const Runners&) = delete;
  Runners& operator=(const Runners&) = delete;
  ~Runners();

  // Of models without an environment. As many threads as processors.
  static Runners& shared();

  // False if no thread could be started to run it, ever.
  bool post(Task* task);
  // Takes back a task that hasn't been begun; false if it has.
  bool withdraw(Task* task);

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable work;
    Task* first = nullptr;
    Task* last = nullptr;
    int64_t waiting = 0;  // tasks
    int64_t idle = 0;     // threads
    size_t threads = 0;
    bool stop = false;
    std::vector<pthread_t> own;
    std::vector<void*> hosts;
  };
  struct Start {
    std::shared_ptr<State> state;
    size_t number;
  };
  static void thread_main(void* start);
  static void serve(State& state);
  bool start();
  void renew();

  const int64_t most_;
  const Threads how_;
  pid_t process_ = -1;
  std::shared_ptr<State> state_;  // of the threads, too: the last one may be told to end by itself
};

}  // namespace dhlo
