// Asynchronous runs of a session.
#include "async.hpp"

#include <algorithm>
#include <utility>

#include "session.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

// Whose host's function the thread is in: within one that destroys another session, that of the other may be called,
// too.
struct Telling {
  const AsyncRun* run;
  const Telling* around;
};
thread_local const Telling* telling = nullptr;

bool tells(const AsyncRun* run) {
  const Telling* at = telling;
  while (at != nullptr && at->run != run) at = at->around;
  return at != nullptr;
}

}  // namespace

// Copies sizes and strides. What is no tensor is left for the run's checks to refuse.
void AsyncRun::keep(const dhlo_tensor* inputs, int64_t num_inputs) {
  inputs_.assign(inputs, inputs + num_inputs);
  numbers_.clear();
  numbers_.reserve(inputs_.size() * 2 * DHLO_ABI_MAX_RANK);  // so that addresses stay
  auto copy = [this](const int64_t* from, int32_t rank) -> const int64_t* {
    if (from == nullptr || rank < 1 || rank > DHLO_ABI_MAX_RANK) return nullptr;
    numbers_.insert(numbers_.end(), from, from + rank);
    return numbers_.data() + numbers_.size() - rank;
  };
  for (dhlo_tensor& input : inputs_) {
    input.sizes = copy(input.sizes, input.rank);
    input.strides = copy(input.strides, input.rank);
  }
}

Runners& AsyncRun::runners() const {
  EnvironmentState* env = session_->model->program->env.get();
  return env != nullptr ? env->runners : Runners::shared();
}

void AsyncRun::begin(const dhlo_tensor* inputs, int64_t num_inputs, const dhlo_run_options& how, dhlo_done_fn done,
                     void* ctx) {
  try {
    keep(inputs, num_inputs);
    done_ = done;
    ctx_ = ctx;
    self_ = shared_from_this();
    session_->stop.begin(how.timeout_ns, how.cancel);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ending_) throw Error(DHLO_CANCELLED, "the session is being destroyed");
      ++pending_;
    }
    if (runners().post(this)) return;
    EnvironmentState* env = session_->model->program->env.get();
    if (env != nullptr) env->log(DHLO_LOG_ERROR, [] { return std::string("no thread could be started"); });
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --pending_;
    }
    throw Error(DHLO_OUT_OF_MEMORY, "no thread could be started for an asynchronous run");
  } catch (...) {
    session_->stop.finish();
    self_.reset();
    session_->common->running.store(false, std::memory_order_release);
    throw;
  }
}

void AsyncRun::run() noexcept {
  const std::shared_ptr<AsyncRun> self = std::move(self_);
  dhlo_session* const session = session_;
  // The program, and its environment with this thread, stay until the host has been told.
  std::shared_ptr<const Program> program = session->model->program;
  const dhlo_status status = session->run_claimed(inputs_.data(), static_cast<int64_t>(inputs_.size()));
  const dhlo_done_fn done = done_;
  void* const ctx = ctx_;
  session->common->running.store(false, std::memory_order_release);
  const Telling mine{this, telling};
  telling = &mine;
  const bool ok = fenced([&] { return done(ctx, session, status), true; }, false);
  telling = mine.around;
  if (!ok && program->env != nullptr)
    program->env->log(DHLO_LOG_ERROR, [] { return std::string("the host's function for the end of a run threw"); });
  program.reset();  // before whoever waits in end() goes on: the host may then take away what its hooks need
  const std::lock_guard<std::mutex> lock(mutex_);
  --pending_;
  told_.notify_all();
}

void AsyncRun::end() noexcept {
  const int64_t own = tells(this) ? 1 : 0;
  std::unique_lock<std::mutex> lock(mutex_);
  ending_ = true;  // or a function that begins the next run each time would never let it end
  if (pending_ <= own) return;
  session_->stop.cancel();
  lock.unlock();
  // The thread that it waits for may be this one.
  if (runners().withdraw(this)) run();
  lock.lock();
  wait_until(told_, lock, [&] { return pending_ <= own; });
}

}  // namespace dhlo
