// An engine over two processes, which are threads here, over memory that they share.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "../checks.hpp"
#include "dhlo/serve.hpp"
#include "toy_step.hpp"

namespace {

// Where both processes meet for an operation.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0, round = 0;
  const dhlo_collective* given[2] = {};

  void pass() {
    arrived = 0;
    ++round;
    changed.notify_all();
  }
  // 0 once `work` is done by both; 1 when the operation's timeout is over before the other one has come.
  template <class Work>
  int32_t meet(int64_t rank, const dhlo_collective& what, Work&& work) {
    std::unique_lock<std::mutex> lock(mutex);
    given[rank] = &what;
    const int here = round;
    if (++arrived == 2) pass();
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(what.timeout_ns);
    while (round == here) {
      changed.wait_for(lock, std::chrono::milliseconds(10));
      if (round == here && std::chrono::steady_clock::now() > end) {
        --arrived;
        return 1;
      }
    }
    work(*given[0], *given[1]);
    const int after = round;
    if (++arrived == 2) pass();
    changed.wait(lock, [&] { return round != after; });
    return 0;
  }
};

struct Process {
  Meeting* meeting;
  int64_t rank;
  int throws_at = 0;  // its operation of this number, from 1 on
  int calls = 0;
};

int32_t find_group(void* ctx, const char*, int64_t* size, int64_t* rank) {
  *size = 2;
  *rank = static_cast<Process*>(ctx)->rank;
  return 0;
}

template <class T>
void greatest(const dhlo_collective& what, const void* a, const void* b) {
  const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  for (int64_t i = 0; i < what.output_count; ++i) static_cast<T*>(what.output)[i] = std::max(x[i], y[i]);
}

int32_t operate(void* ctx, const dhlo_collective* what) {
  auto& self = *static_cast<Process*>(ctx);
  if (++self.calls == self.throws_at) throw std::runtime_error("unplugged");
  return self.meeting->meet(self.rank, *what, [&](const dhlo_collective& a, const dhlo_collective& b) {
    CHECK(a.kind == b.kind && a.input_count == b.input_count && a.dtype == b.dtype);
    if (what->kind == DHLO_BROADCAST)
      std::memcpy(what->output, a.input, static_cast<size_t>(a.input_count * dhlo_dtype_bytes(a.dtype)));
    else if (what->dtype == DHLO_F32)
      greatest<float>(*what, a.input, b.input);
    else
      greatest<int32_t>(*what, a.input, b.input);
  });
}

dhlo_communicator communicator_of(Process* process) {
  dhlo_communicator made;
  dhlo_communicator_init(&made);
  made.ctx = process;
  made.find_group = find_group;
  made.all_reduce = made.broadcast = operate;
  return made;
}

dhlo_engine_options options_of(const dhlo_communicator* communicator, int64_t blocks, int64_t step_tokens) {
  dhlo_engine_options options;
  dhlo_engine_options_init(&options);
  options.cache_bytes = blocks * toy::kBlock * 8;
  options.max_step_tokens = step_tokens;
  options.max_sequences = std::min<int64_t>(8, step_tokens);
  options.communicator = communicator;
  options.peer_timeout_ns = 300000000000;
  return options;
}

struct Told {
  std::vector<int32_t> tokens;
  int32_t finish = DHLO_FINISH_NONE;
  std::string error;
};

void read(dhlo::Engine& engine, std::map<std::pair<uint64_t, int32_t>, Told>& answers, size_t choices) {
  for (size_t ended = 0; ended < choices;)
    for (const dhlo_event* event : engine.poll(std::chrono::seconds(60))) {
      Told& told = answers[{event->request, event->choice}];
      told.tokens.insert(told.tokens.end(), event->tokens, event->tokens + event->num_tokens);
      told.finish = event->finish;
      told.error = event->error;
      if (event->finish != DHLO_FINISH_NONE) ++ended;
    }
}

// Greedy tokens follow from both processes' pools: what only one would have copied shows.
void test_greedy(int64_t blocks, int64_t step_tokens, int64_t lookup, const dhlo::Model* draft_model = nullptr) {
  Meeting meeting;
  Process leads{&meeting, 0}, follows{&meeting, 1};
  const dhlo_communicator here = communicator_of(&leads), there = communicator_of(&follows);
  const dhlo::Model model = toy::model<toy::Kind::kShared>();
  std::thread other([&] {
    const dhlo_engine_options options = options_of(&there, 1, 1);  // the engine's are what counts
    CHECK(dhlo_engine_follow(model.get(), &options) == DHLO_OK);
  });
  {
    dhlo_engine_options options = options_of(&here, blocks, step_tokens);
    options.prompt_lookup = std::min(lookup, step_tokens);
    if (draft_model != nullptr) options.draft_model = draft_model->get();
    dhlo::Engine engine(model, &options);
    std::map<uint64_t, std::vector<int32_t>> prompts;
    std::map<std::pair<uint64_t, int32_t>, Told> answers;
    size_t choices = 0;
    uint64_t state = 1;
    for (int i = 0; i < 20; ++i) {
      std::vector<int32_t> prompt(i % 5 == 0 ? 20 : static_cast<size_t>(1 + (i * 7) % 60));
      for (size_t t = 0; t < prompt.size(); ++t)
        prompt[t] =
            i % 5 == 0 ? static_cast<int32_t>(t % 7) : static_cast<int32_t>((state = toy::mixed(state, t)) % toy::kNan);
      dhlo_sampling sampling;
      dhlo_sampling_init(&sampling);
      sampling.temperature = 0;
      sampling.max_tokens = 30;
      sampling.n = 1 + i % 3;
      choices += static_cast<size_t>(sampling.n);
      prompts[engine.submit(prompt, &sampling)] = prompt;
    }
    read(engine, answers, choices);
    for (const auto& [key, told] : answers) CHECK(told.tokens == toy::greedy(prompts.at(key.first), 30));
    const dhlo_engine_stats stats = engine.stats();
    if (blocks < 20) CHECK(stats.preemptions > 0);
    if (draft_model != nullptr) CHECK(stats.accepted_tokens > 0 && stats.drafted_tokens > 2 * stats.drafts);
  }
  other.join();
}

// Either fails at each of its first operations: nobody waits for long, and the engine says what happened.
void test_failures() {
  for (int64_t rank : {0, 1})
    for (int at = 1; at < 9; ++at) {
      Meeting meeting;
      Process leads{&meeting, 0, rank == 0 ? at : 0}, follows{&meeting, 1, rank == 1 ? at : 0};
      const dhlo_communicator here = communicator_of(&leads), there = communicator_of(&follows);
      const dhlo::Model model = toy::model<toy::Kind::kShared>();
      auto soon = [](dhlo_engine_options options) {
        options.peer_timeout_ns = 200000000;
        return options;
      };
      std::thread other([&] {
        const dhlo_engine_options options = soon(options_of(&there, 1, 1));
        CHECK(dhlo_engine_follow(model.get(), &options) == DHLO_HOST);
        CHECK(std::strstr(dhlo_serve_last_error(), "the communicator failed") != nullptr);
      });
      try {
        const dhlo_engine_options options = soon(options_of(&here, 9, 8));
        dhlo::Engine engine(model, &options);
        CHECK(at > 2);
        if (at == 3) {  // as nobody asks for anything: the one that is left says it by itself
          const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
          while (dhlo_engine_check_health(engine.get()) == DHLO_OK && std::chrono::steady_clock::now() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::map<std::pair<uint64_t, int32_t>, Told> answers;
        for (int i = 0; i < 2; ++i) engine.submit({1, 2, 3});
        read(engine, answers, 2);
        engine.submit({4});
        read(engine, answers, 1);
        for (const auto& [key, told] : answers) CHECK(told.finish == DHLO_FINISH_ERROR && !told.error.empty());
        CHECK(dhlo_engine_check_health(engine.get()) == DHLO_HOST);
        CHECK(std::strstr(dhlo_serve_last_error(), "the communicator failed") != nullptr);
        const dhlo_engine_stats stats = engine.stats();
        CHECK(stats.running == 0 && stats.waiting == 0 && stats.blocks_used == 0);
        engine.close();
        CHECK(dhlo_engine_check_health(engine.get()) == DHLO_CANCELLED);
      } catch (const dhlo::RuntimeError& error) {
        CHECK(at <= 2 && std::strstr(error.what(), "the communicator failed") != nullptr);
      }
      other.join();
    }
}

void test_what_is_refused() {
  Meeting meeting;
  Process leads{&meeting, 0}, follows{&meeting, 1};
  const dhlo_communicator here = communicator_of(&leads), there = communicator_of(&follows);
  const dhlo::Model model = toy::model<toy::Kind::kShared>(), alone = toy::model();
  auto refused = [](const dhlo::Model& step, const dhlo_engine_options& options, const char* text) {
    dhlo_engine* engine = nullptr;
    CHECK(dhlo_engine_create(step.get(), &options, &engine) == DHLO_INVALID_ARGUMENT);
    CHECK(std::strstr(dhlo_serve_last_error(), text) != nullptr);
  };
  refused(model, options_of(&there, 4, 8), "process 0 has the engine");
  refused(alone, options_of(&here, 4, 8), "collective operations in 0 process groups");
  refused(model, options_of(nullptr, 4, 8), "no communicator");
  dhlo_engine_options options = options_of(&here, 4, 8);
  options.preemption = DHLO_PREEMPTION_SWAP;
  refused(model, options, "preemption: what is swapped would be of one process alone");
  options = options_of(&here, 4, 8);
  options.peer_timeout_ns = -1;
  refused(model, options, "peer_timeout_ns");
  dhlo_communicator partly = here;
  partly.broadcast = nullptr;
  refused(model, options_of(&partly, 4, 8), "needs find_group, broadcast and all_reduce");
  options = options_of(&here, 4, 8);
  CHECK(dhlo_engine_follow(model.get(), &options) == DHLO_INVALID_ARGUMENT);
  CHECK(std::strstr(dhlo_serve_last_error(), "process 0 of group 'tp', which is to have the engine") != nullptr);
  options.communicator = nullptr;
  CHECK(dhlo_engine_follow(model.get(), &options) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_engine_follow(nullptr, nullptr) == DHLO_INVALID_ARGUMENT);
}

}  // namespace

int main() {
  test_greedy(200, 64, 0);
  test_greedy(9, 8, 4);  // preemption
  test_greedy(9, 512, 0);
  const dhlo::Model second = toy::model<toy::Kind::kSecond>();
  toy::taken_us = 500;  // so that trees of drafts pay
  test_greedy(200, 64, 0, &second);
  test_greedy(12, 64, 0, &second);
  toy::taken_us = 0;
  test_failures();
  test_what_is_refused();
  if (failures == 0) std::printf("all passed\n");
  return failures != 0;
}
