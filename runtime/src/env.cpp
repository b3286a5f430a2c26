// What models and sessions of one environment share, and the C interface to it.
#include "env.hpp"

#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "support.hpp"

namespace dhlo {
namespace {

// Whether the system lets a thread of this process run there, which only a thread can tell: another mask is refused, or
// cut down to what is allowed.
bool can_run_on(const dhlo_env_options& options) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int64_t i = 0; i < options.num_processors; ++i) CPU_SET(static_cast<size_t>(options.processors[i]), &set);
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return true;
  pthread_t thread;
  auto nothing = [](void*) -> void* { return nullptr; };
  int failed = pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
  if (failed == 0) failed = pthread_create(&thread, &attributes, nothing, nullptr);
  if (failed == 0) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return failed != EINVAL;  // where no thread is to be had now, those to come say so
}

dhlo_env_options read_options(const dhlo_env_options* given) {
  const dhlo_env_options options =
      read_struct(given, dhlo_env_options_init, offsetof(dhlo_env_options, allocator), "environment options");
  auto refuse = [](const std::string& text) { throw Error(DHLO_INVALID_ARGUMENT, "environment options: " + text); };
  if ((options.allocator.alloc == nullptr) != (options.allocator.free == nullptr))
    refuse("an allocator needs both alloc and free");
  if ((options.create_thread == nullptr) != (options.join_thread == nullptr))
    refuse("threads need both create_thread and join_thread");
  if (options.num_threads < 0)
    refuse("num_threads: expected 0 (by default) or more, got " + std::to_string(options.num_threads));
  if (options.max_bytes < 0)
    refuse("max_bytes: expected 0 (no limit) or more, got " + std::to_string(options.max_bytes));
  if (options.num_processors < 0 || (options.num_processors > 0 && options.processors == nullptr))
    refuse("num_processors: expected as many numbers as processors has");
  for (int64_t i = 0; i < options.num_processors; ++i)
    if (options.processors[i] < 0 || options.processors[i] >= CPU_SETSIZE)
      refuse("processors: expected numbers from 0 to " + std::to_string(CPU_SETSIZE - 1) + ", got " +
             std::to_string(options.processors[i]));
  if (options.num_processors > 0 && options.create_thread != nullptr)
    refuse("the threads that create_thread makes are placed by it: leave out processors");
  if (options.num_processors > 0 && !can_run_on(options)) refuse("processors: this process may run on none of them");
  return options;
}

Threads threads_of(const dhlo_env_options& options) {
  return {options.create_thread, options.join_thread, options.threads_ctx,
          std::vector<int32_t>(options.processors, options.processors + options.num_processors)};
}

}  // namespace

EnvironmentState::EnvironmentState(const dhlo_env_options& options)
    : allocator(options.allocator),
      account(options.max_bytes),
      num_threads(Pool::resolve_threads(options.num_threads > 0 ? options.num_threads : options.num_processors)),
      makes_threads(options.create_thread != nullptr),
      pool(num_threads > 1 ? Pool::make(num_threads, threads_of(options)) : nullptr),
      runners(num_threads, threads_of(options)),
      trace(options.trace),
      trace_ctx(options.trace_ctx),
      log_fn(options.log),
      log_ctx(options.log_ctx),
      log_level(options.log_level) {}

}  // namespace dhlo

void dhlo_env_options_init(dhlo_env_options* options) {
  if (options == nullptr) return;
  *options = dhlo_env_options{};
  options->struct_bytes = sizeof *options;
  options->log_level = DHLO_LOG_WARNING;
}

dhlo_status dhlo_env_create(const dhlo_env_options* options, dhlo_env** out) {
  return dhlo::guard(
      [&] {
        if (out == nullptr) throw dhlo::Error(DHLO_INVALID_ARGUMENT, "dhlo_env_create: out is null");
        auto env = std::make_unique<dhlo_env>();
        env->environment = std::make_shared<dhlo::EnvironmentState>(dhlo::read_options(options));
        *out = env.release();
      },
      dhlo::set_last_error);
}

void dhlo_env_retain(dhlo_env* env) {
  if (env != nullptr) env->references.fetch_add(1, std::memory_order_relaxed);
}

void dhlo_env_release(dhlo_env* env) {
  if (env != nullptr && env->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete env;
}

int64_t dhlo_env_num_threads(const dhlo_env* env) { return env != nullptr ? env->environment->num_threads : 0; }

int64_t dhlo_env_used_bytes(const dhlo_env* env) { return env != nullptr ? env->environment->account.used() : 0; }
