// Environments: threads shared by sessions, limits, hooks, logs; asynchronous runs.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checks.hpp"

namespace {

class Env : public dhlo::Environment {
 public:
  explicit Env(const dhlo_env_options& options) : Environment(&options) {}
  dhlo::Model model() const {
    dhlo_model_options options;
    dhlo_model_options_init(&options);
    options.env = get();
    return make_model(&options);
  }
};

dhlo_env_options env_options(int64_t threads) {
  dhlo_env_options options;
  dhlo_env_options_init(&options);
  options.num_threads = threads;
  return options;
}

struct Counted {
  std::atomic<int64_t> created{0}, joined{0}, traced{0}, logged{0};
  std::mutex mutex;
  std::vector<std::string> texts;
};

void* create_thread(void* ctx, const char* name, void (*main)(void*), void* arg) {
  ++static_cast<Counted*>(ctx)->created;
  CHECK(std::string(name).substr(0, 5) == "dhlo-");
  return new std::thread(main, arg);
}

void join_thread(void* ctx, void* thread) {
  ++static_cast<Counted*>(ctx)->joined;
  static_cast<std::thread*>(thread)->join();
  delete static_cast<std::thread*>(thread);
}

void test_hooks_of_an_environment() {
  Counted counted;
  dhlo_env_options options = env_options(3);
  options.create_thread = create_thread;
  options.join_thread = join_thread;
  options.threads_ctx = options.trace_ctx = options.log_ctx = &counted;
  options.trace = [](void* ctx, const dhlo_trace_event*) { ++static_cast<Counted*>(ctx)->traced; };
  options.log_level = DHLO_LOG_DEBUG;
  options.log = [](void* ctx, int32_t, const char* text) {
    auto* self = static_cast<Counted*>(ctx);
    const std::lock_guard<std::mutex> lock(self->mutex);
    self->texts.emplace_back(text);
    throw std::runtime_error("goes no further");
  };
  {
    const Env env(options);
    const dhlo::Model model = env.model();
    CHECK(dhlo_model_num_threads(model.get()) == 3 && dhlo_env_num_threads(env.get()) == 3);
    dhlo::Session session(model);
    Call call(5000), bad(3, 1);
    CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()) && bad.run(session.get()) == DHLO_CONTRACT);
    CHECK(counted.created == 2 && counted.joined == 0 && counted.traced > 3);
  }
  CHECK(counted.joined == 2);
  auto logged = [&](const std::string& text) {
    return std::any_of(counted.texts.begin(), counted.texts.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  CHECK(logged("loaded model descriptor: toy by toy 1.0") && logged("released toy") && logged("arena of a session"));
  CHECK(logged("a run of toy failed (contract): mode must not be one"));
}

void test_limit() {
  dhlo_env_options options = env_options(2);
  options.max_bytes = 100'000;
  const Env env(options);
  const dhlo::Model model = env.model();
  Call small(1000), large(5000);  // 16 bytes of arena and as many of outputs a row, and more
  {
    dhlo::Session first(model), second(model);
    CHECK(small.run(first.get()) == DHLO_OK && small.right(first.get()));
    CHECK(dhlo_env_used_bytes(env.get()) > 32'000 && dhlo_env_used_bytes(env.get()) <= 100'000);
    CHECK(large.run(second.get()) == DHLO_OUT_OF_MEMORY);
    CHECK(error_of(second).find("but the environment's limit of 100000 bytes leaves") != std::string::npos);
    first.trim();
    CHECK(small.run(second.get()) == DHLO_OK && small.right(second.get()));
  }
  CHECK(dhlo_env_used_bytes(env.get()) == 0);
  options.max_bytes = 8;
  const Env tiny(options);
  dhlo_session* none = nullptr;
  CHECK(dhlo_session_create(tiny.model().get(), nullptr, &none) == DHLO_OUT_OF_MEMORY && none == nullptr);
}

void test_bad_options() {
  auto refused = [](const dhlo_env_options& options) {
    dhlo_env* env = nullptr;
    return dhlo_env_create(&options, &env) == DHLO_INVALID_ARGUMENT && env == nullptr;
  };
  const int32_t wrong[1] = {-1};
  dhlo_env_options options = env_options(1025);
  CHECK(refused(options));
  options = env_options(1);
  options.max_bytes = -1;
  CHECK(refused(options));
  options = env_options(1);
  options.create_thread = create_thread;
  CHECK(refused(options));
  options = env_options(1);
  options.num_processors = 1;
  CHECK(refused(options));
  options.processors = wrong;
  CHECK(refused(options) && std::string(dhlo_last_error()).find("processors") != std::string::npos);
  const int32_t absent[1] = {CPU_SETSIZE - 1};
  options.processors = absent;
  if (sysconf(_SC_NPROCESSORS_CONF) < CPU_SETSIZE)
    CHECK(refused(options) && std::string(dhlo_last_error()).find("may run on none of them") != std::string::npos);
  CHECK(refused(env_options(-1)));
  CHECK(refused(dhlo_env_options{}));
  CHECK(dhlo_env_create(nullptr, nullptr) == DHLO_INVALID_ARGUMENT && dhlo_env_used_bytes(nullptr) == 0);
  dhlo::Environment first(&(options = env_options(1))), second = first;
  CHECK(first.get() == second.get() && first.num_threads() == 1 && first.used_bytes() == 0);
  second = dhlo::Environment(std::move(first));
  bool threw = false;
  try {
    dhlo::Environment(&(options = env_options(-1)));
  } catch (const dhlo::RuntimeError& error) {
    threw = error.status() == DHLO_INVALID_ARGUMENT;
  }
  CHECK(threw);
  dhlo_env_release(nullptr);
}

// Threads stay on the processors that the host names.
void test_processors() {
  cpu_set_t mine;
  CHECK(sched_getaffinity(0, sizeof mine, &mine) == 0);
  int32_t last = 0;
  for (int32_t p = 0; p < CPU_SETSIZE; ++p)
    if (CPU_ISSET(static_cast<size_t>(p), &mine)) last = p;
  struct Seen {
    int32_t processor;
    std::atomic<int64_t> workers{0}, elsewhere{0};
  } seen;
  seen.processor = last;
  dhlo_env_options options = env_options(3);
  options.processors = &last;
  options.num_processors = 1;
  options.trace_ctx = &seen;
  options.trace = [](void* ctx, const dhlo_trace_event* event) {
    auto* self = static_cast<Seen*>(ctx);
    if (event->kind != DHLO_TRACE_WORK || event->worker == 0) return;
    ++self->workers;
    self->elsewhere += sched_getcpu() != self->processor;
  };
  const Env env(options);
  dhlo::Session session(env.model());
  Call call(200'000);
  for (int i = 0; i < 50 && seen.workers == 0; ++i) CHECK(call.run(session.get()) == DHLO_OK);
  CHECK(call.right(session.get()) && seen.elsewhere == 0);
}

// While one session's launches keep all threads of the pool busy, they help another's, too.
void test_threads_help_all_sessions() {
  const Env env(env_options(2));
  const dhlo::Model model = env.model();
  std::atomic<bool> over{false};
  std::atomic<int64_t> helped{0};
  auto count = [](void* ctx, const dhlo_trace_event* event) {
    if (event->kind == DHLO_TRACE_WORK && event->worker > 0) ++*static_cast<std::atomic<int64_t>*>(ctx);
  };
  std::thread busy([&] {
    dhlo::Session session(model);
    Call call(300'000);
    while (!over) CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  });
  dhlo::Session session(model);
  CHECK(dhlo_session_set_trace(session.get(), count, &helped) == DHLO_OK);
  Call call(300'000);
  for (int i = 0; i < 2000 && helped < 3; ++i) CHECK(call.run(session.get()) == DHLO_OK && call.right(session.get()));
  over = true;
  busy.join();
  CHECK(helped >= 3);
}

// More callers than the pool takes launches of.
void test_many_callers() {
  const Env env(env_options(3));
  const dhlo::Model model = env.model();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 12; ++t) {
    threads.emplace_back([&, t] {
      dhlo::Session session(model);
      for (int round = 0; round < 40; ++round) {
        Call call((round * 131 + t * 1009) % 5000);
        if (call.run(session.get()) != DHLO_OK || !call.right(session.get())) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

// What a dhlo_done_fn is told.
struct Done {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<dhlo_status> told;

  static void tell(void* ctx, dhlo_session*, dhlo_status status) {
    auto* self = static_cast<Done*>(ctx);
    const std::lock_guard<std::mutex> lock(self->mutex);
    self->told.push_back(status);
    self->changed.notify_all();
  }
  dhlo_status wait(size_t count = 1) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return told.size() >= count; });
    return told[count - 1];
  }
};

dhlo_status run_async(const dhlo::Session& session, const Call& call, Done* done,
                      const dhlo_run_options* options = nullptr) {
  return dhlo_session_run_async(session.get(), call.views, 2, options, Done::tell, done);
}

void test_async(const dhlo::Model& model) {
  dhlo::Session session(model);
  Done done;
  {
    // Sizes are copied, data is borrowed.
    Call call(700);
    dhlo_tensor views[2] = {call.views[0], call.views[1]};
    int64_t sizes[2] = {700, 4};
    views[0].sizes = sizes;
    CHECK(dhlo_session_run_async(session.get(), views, 2, nullptr, Done::tell, &done) == DHLO_OK);
    sizes[0] = -7;
    views[1].rank = 99;
    CHECK(done.wait(1) == DHLO_OK && call.right(session.get()));
  }
  Call looping(5, 6), bad(3, 1), good(5);
  CHECK(run_async(session, bad, &done) == DHLO_OK && done.wait(2) == DHLO_CONTRACT);
  CHECK(error_of(session) == "mode must not be one");
  CHECK(run_async(session, looping, &done) == DHLO_OK);
  CHECK(run_async(session, good, &done) == DHLO_BUSY && good.run(session.get()) == DHLO_BUSY);
  session.cancel();
  CHECK(done.wait(3) == DHLO_CANCELLED);
  dhlo_run_options options;
  dhlo_run_options_init(&options);
  options.timeout_ns = 100'000;
  CHECK(run_async(session, looping, &done, &options) == DHLO_OK && done.wait(4) == DHLO_DEADLINE);
  CHECK(good.run(session.get()) == DHLO_OK && good.right(session.get()));
  options.timeout_ns = -1;
  CHECK(run_async(session, good, &done, &options) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_run_async(session.get(), good.views, 2, nullptr, nullptr, nullptr) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_session_run_async(session.get(), nullptr, 2, nullptr, Done::tell, &done) == DHLO_INVALID_ARGUMENT);
  for (const int64_t count : {int64_t{-1}, int64_t{1}, int64_t{3}, INT64_MAX})
    CHECK(dhlo_session_run_async(session.get(), good.views, count, nullptr, Done::tell, &done) ==
          DHLO_INVALID_ARGUMENT);
  CHECK(std::string(dhlo_last_error()) == "expected 2 input(s), got 9223372036854775807");
  CHECK(run_async(session, good, &done) == DHLO_OK && done.wait(5) == DHLO_OK && good.right(session.get()));
}

// Runs that are accepted end with their session, and all are told of.
void test_sessions_end_during_async_runs() {
  const Env env(env_options(2));
  Done done;
  Call looping(5, 6);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<dhlo::Session>> sessions;
    for (int i = 0; i < 4; ++i) sessions.push_back(std::make_unique<dhlo::Session>(env.model()));
    for (auto& session : sessions) CHECK(run_async(*session, looping, &done) == DHLO_OK);
  }
  CHECK(done.told.size() == 80);
  for (const dhlo_status status : done.told) CHECK(status == DHLO_CANCELLED);
}

// Each end of a run begins the next, until the session is being destroyed.
void test_chains_end_with_their_session() {
  struct Chain {
    Call call{70};
    std::atomic<int> refused{0};
    static void next(void* ctx, dhlo_session* session, dhlo_status) {
      auto* self = static_cast<Chain*>(ctx);
      sched_yield();  // so that the session's end mostly comes between two runs
      const dhlo_status status = dhlo_session_run_async(session, self->call.views, 2, nullptr, next, ctx);
      if (status == DHLO_OK) return;
      CHECK(status == DHLO_CANCELLED && std::string(dhlo_last_error()) == "the session is being destroyed");
      ++self->refused;
    }
  };
  const Env env(env_options(2));
  for (int round = 0; round < 50; ++round) {
    Chain chain;
    {
      dhlo::Session session(env.model());
      CHECK(dhlo_session_run_async(session.get(), chain.call.views, 2, nullptr, Chain::next, &chain) == DHLO_OK);
    }
    CHECK(chain.refused == 1);
  }
}

// Once a session has been destroyed nothing of a run that was told of holds the environment, nor calls its hooks.
void test_told_runs_hold_nothing() {
  std::atomic<bool> gone{false}, late{false};
  struct Hooks {
    std::atomic<bool>*gone, *late;
  } hooks{&gone, &late};
  dhlo_env_options options = env_options(2);
  options.log_level = DHLO_LOG_INFO;
  options.log = [](void* ctx, int32_t, const char*) {
    const auto* self = static_cast<Hooks*>(ctx);
    if (*self->gone) *self->late = true;
  };
  options.log_ctx = &hooks;
  Call call(3);
  for (int round = 0; round < 200; ++round) {
    gone = false;
    {
      const Env env(options);
      Done done;
      dhlo::Session session(env.model());
      CHECK(run_async(session, call, &done) == DHLO_OK && done.wait() == DHLO_OK);
    }
    gone = true;
    sched_yield();
    CHECK(!late);
  }
}

// The host's function may go on with the session, destroy it, and give up all that is left of the environment.
void test_done_functions() {
  struct Chain {
    Call call{70};
    Done done;
    static void last(void* ctx, dhlo_session* session, dhlo_status status) {
      dhlo_session_destroy(session);
      Done::tell(ctx, nullptr, status);
      throw std::runtime_error("goes no further");
    }
  };
  Chain chain;
  dhlo_session* session = nullptr;
  {
    const Env env(env_options(1));
    CHECK(dhlo_session_create(env.model().get(), nullptr, &session) == DHLO_OK);
  }
  CHECK(dhlo_session_run_async(session, chain.call.views, 2, nullptr, Chain::last, &chain.done) == DHLO_OK);
  CHECK(chain.done.wait(1) == DHLO_OK);
  CHECK(dhlo_session_create(make_model().get(), nullptr, &session) == DHLO_OK);
  // Destroyed with a second run accepted.
  auto next = [](void* ctx, dhlo_session* of, dhlo_status status) {
    auto* self = static_cast<Chain*>(ctx);
    CHECK(status == DHLO_OK && self->call.right(of));
    CHECK(dhlo_session_run_async(
              of, self->call.views, 2, nullptr,
              [](void* c, dhlo_session* s, dhlo_status result) {
                auto* chained = static_cast<Chain*>(c);
                if (result == DHLO_OK) CHECK(chained->call.right(s));
                Done::tell(&chained->done, nullptr, result);
              },
              ctx) == DHLO_OK);
    dhlo_session_destroy(of);
    Done::tell(&self->done, nullptr, DHLO_OK);
  };
  CHECK(dhlo_session_run_async(session, chain.call.views, 2, nullptr, next, &chain) == DHLO_OK);
  CHECK(chain.done.wait(3) == DHLO_OK);
}

// On the only thread the function of one session destroys another, which waits: the other's, called meanwhile, destroys the
// first.
void test_done_functions_that_destroy_each_other() {
  struct Pair {
    Call call{30};
    dhlo_session *first = nullptr, *second = nullptr;
    Done done;
    static void last(void* ctx, dhlo_session*, dhlo_status status) {
      auto* self = static_cast<Pair*>(ctx);
      CHECK(status == DHLO_CANCELLED);
      dhlo_session_destroy(self->first);
      Done::tell(&self->done, nullptr, status);
    }
    static void begin(void* ctx, dhlo_session*, dhlo_status status) {
      auto* self = static_cast<Pair*>(ctx);
      CHECK(status == DHLO_OK);
      CHECK(dhlo_session_run_async(self->second, self->call.views, 2, nullptr, last, ctx) == DHLO_OK);
      dhlo_session_destroy(self->second);
      Done::tell(&self->done, nullptr, status);
    }
  };
  Pair pair;
  {
    const Env env(env_options(1));
    const dhlo::Model model = env.model();
    CHECK(dhlo_session_create(model.get(), nullptr, &pair.first) == DHLO_OK);
    CHECK(dhlo_session_create(model.get(), nullptr, &pair.second) == DHLO_OK);
  }
  CHECK(dhlo_session_run_async(pair.first, pair.call.views, 2, nullptr, Pair::begin, &pair) == DHLO_OK);
  CHECK(pair.done.wait(2) == DHLO_OK);
}

#ifndef __SANITIZE_THREAD__  // which can't follow a fork of several threads
void test_fork() {
  const Env env(env_options(3));
  const dhlo::Model model = env.model();
  dhlo::Session session(model);
  Call call(5000);
  Done done;
  CHECK(call.run(session.get()) == DHLO_OK && run_async(session, call, &done) == DHLO_OK && done.wait() == DHLO_OK);
  const pid_t child = fork();
  if (child == 0) {
    Done mine;
    const bool ok = call.run(session.get()) == DHLO_OK && call.right(session.get()) &&
                    run_async(session, call, &mine) == DHLO_OK && mine.wait() == DHLO_OK;
    _exit(ok ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}
#endif

}  // namespace

void test_environments() {
  test_hooks_of_an_environment();
  test_limit();
  test_bad_options();
  test_processors();
  test_threads_help_all_sessions();
  test_many_callers();
  test_async(make_model_with_threads(2));
  test_async(Env(env_options(1)).model());
  test_sessions_end_during_async_runs();
  test_chains_end_with_their_session();
  test_told_runs_hold_nothing();
  test_done_functions();
  test_done_functions_that_destroy_each_other();
#ifndef __SANITIZE_THREAD__
  if (std::getenv("DHLO_TESTS_EMULATED") == nullptr) test_fork();  // qemu can't follow one either
#endif
}
