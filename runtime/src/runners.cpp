// Threads that run what hosts don't want to wait for.
#include "runners.hpp"

#include <unistd.h>

#include <cstddef>
#include <new>
#include <utility>

namespace dhlo {

namespace {

// Of the thread, if it is one of ours: its state, and its number.
thread_local const void* current = nullptr;
thread_local size_t current_number = 0;

}  // namespace

Runners::Runners(int64_t most, Threads how) : most_(most), how_(std::move(how)) { renew(); }

void Runners::renew() {
  auto fresh = std::make_shared<State>();
  fresh->own.reserve(static_cast<size_t>(most_));
  fresh->hosts.reserve(static_cast<size_t>(most_));
  // The old one is as a fork left it, perhaps locked by a thread that isn't here.
  if (state_ != nullptr) static_cast<void>(new std::shared_ptr<State>(std::move(state_)));
  state_ = std::move(fresh);
  process_ = getpid();
}

Runners::~Runners() {
  if (process_ != getpid()) {
    static_cast<void>(new std::shared_ptr<State>(std::move(state_)));
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop = true;
  }
  state_->work.notify_all();
  if (current == state_.get()) {  // the host's function, which runs on one of the threads, gave up the last reference
    if (current_number < state_->own.size()) {
      pthread_detach(state_->own[current_number]);
      state_->own.erase(state_->own.begin() + static_cast<std::ptrdiff_t>(current_number));
    } else {
      state_->hosts.erase(state_->hosts.begin() + static_cast<std::ptrdiff_t>(current_number));
    }
  }
  join_threads(how_, state_->own, state_->hosts);
}

Runners& Runners::shared() {
  static Runners& instance = *new Runners(Pool::resolve_threads(0));
  return instance;
}

bool Runners::start() {
  auto* start = new (std::nothrow) Start{state_, state_->threads};
  if (start == nullptr) return false;
  if (start_thread(how_, "dhlo-runner", thread_main, start, &state_->own, &state_->hosts)) return true;
  delete start;
  return false;
}

bool Runners::post(Task* task) {
  if (process_ != getpid()) renew();  // in the child of a fork, which has one thread
  State& state = *state_;
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.idle <= state.waiting && static_cast<int64_t>(state.threads) < most_ && start()) ++state.threads;
  if (state.threads == 0) return false;
  task->next = nullptr;
  (state.last != nullptr ? state.last->next : state.first) = task;
  state.last = task;
  ++state.waiting;
  state.work.notify_one();
  return true;
}

bool Runners::withdraw(Task* task) {
  if (process_ != getpid()) return false;
  State& state = *state_;
  const std::lock_guard<std::mutex> lock(state.mutex);
  Task* before = nullptr;
  for (Task* at = state.first; at != nullptr; before = at, at = at->next) {
    if (at != task) continue;
    (before != nullptr ? before->next : state.first) = at->next;
    if (state.last == at) state.last = before;
    --state.waiting;
    return true;
  }
  return false;
}

void Runners::thread_main(void* given) {
  const std::unique_ptr<Start> start(static_cast<Start*>(given));
  current = start->state.get();
  current_number = start->number;
  serve(*start->state);
}

void Runners::serve(State& state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  for (;;) {
    ++state.idle;
    wait_until(state.work, lock, [&] { return state.stop || state.first != nullptr; });
    --state.idle;
    if (state.first == nullptr) return;
    Task* task = state.first;
    state.first = task->next;
    if (state.first == nullptr) state.last = nullptr;
    --state.waiting;
    lock.unlock();
    task->run();
    lock.lock();
  }
}

}  // namespace dhlo
