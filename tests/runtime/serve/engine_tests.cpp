// The engine over a step written by hand: batching, preemption, cancellation, hooks, failures, threads; the sampler.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "dhlo/serve.hpp"
#include "engine_checks.hpp"
#include "lanes.hpp"
#include "philox.hpp"
#include "sampler.hpp"
#include "stops.hpp"
#include "toy_step.hpp"

namespace {

using dhlo::serve::Draw;
using dhlo::serve::Lanes;
using dhlo::serve::Rules;
using dhlo::serve::Sampler;

int64_t swaps = 0;  // of all runs: whether one has any hangs on when its requests come

void test_greedy(int64_t blocks, int64_t step_tokens, int64_t lookup, uint64_t seed,
                 const dhlo::Model* draft_model = nullptr, int64_t swap_blocks = 0, int64_t kept_blocks = 0) {
  Random random{seed};
  dhlo_engine_options options = options_of(blocks, step_tokens, true);
  options.prompt_lookup = std::min(lookup, step_tokens);
  if (draft_model != nullptr) {
    options.draft_model = draft_model->get();
    options.draft_tokens = std::min<int64_t>(options.draft_tokens, step_tokens);
  }
  if (swap_blocks > 0) options.preemption = DHLO_PREEMPTION_SWAP;
  options.swap_bytes = swap_blocks * toy::kBlock * 8;
  options.evict_to = kept_blocks * toy::kBlock;
  dhlo::Engine engine(toy::model(), &options);
  struct Asked {
    std::vector<int32_t> prompt;
    int64_t max_tokens;
    int32_t n;
  };
  std::map<uint64_t, Asked> asked;
  const std::vector<int32_t> beginning = prompt_of(random, 40);
  size_t choices = 0;
  for (int i = 0; i < 60; ++i) {
    Asked request{random.below(2) != 0 ? beginning : std::vector<int32_t>(), 1 + random.below(40), 1};
    if (random.below(4) == 0 && step_tokens >= 3) request.n = 3;
    for (const int32_t token : prompt_of(random, 1 + random.below(50))) request.prompt.push_back(token);
    dhlo_sampling sampling = greedy_sampling(request.max_tokens);
    sampling.n = request.n;
    sampling.priority = static_cast<int32_t>(random.below(3));
    asked[engine.submit(request.prompt, &sampling)] = request;
    choices += static_cast<size_t>(request.n);
  }
  Answers answers;
  read(engine, answers, choices);
  for (const auto& [key, told] : answers) {
    const Asked& request = asked[key.first];
    CHECK(told.finish == DHLO_FINISH_LENGTH && told.error.empty());
    if (told.finish != DHLO_FINISH_LENGTH) std::printf("%s\n", told.error.c_str());
    CHECK(told.tokens == toy::greedy(request.prompt, request.max_tokens, kept_blocks));
  }
  check_idle(engine);
  const dhlo_engine_stats stats = engine.stats();
  CHECK((stats.evicted_blocks > 0) == (kept_blocks > 0));
  CHECK((stats.swaps == 0 || swap_blocks > 0) && stats.swapped_bytes == 0);
  swaps += stats.swaps;
}

// Choices that were swapped out and are cancelled there leave nothing behind, and what is out is bounded.
void test_swapping() {
  dhlo_engine_options options = options_of(9, 64, false);
  options.preemption = DHLO_PREEMPTION_SWAP;
  options.swap_bytes = 5 * toy::kBlock * 8;
  dhlo::Engine engine(toy::model(), &options);
  const dhlo_sampling sampling = greedy_sampling(60);
  Random random{3};
  std::vector<uint64_t> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(engine.submit(prompt_of(random, 30), &sampling));
  int64_t most = 0;
  while (engine.stats().swaps < 3 && engine.step()) most = std::max(most, engine.stats().swapped_bytes);
  CHECK(most > 0 && most <= options.swap_bytes);
  for (const uint64_t each : requests) engine.cancel(each);
  while (engine.step()) continue;
  check_idle(engine);
  CHECK(engine.stats().swapped_bytes == 0);
  options.preemption = 2;
  dhlo_engine* other = nullptr;
  CHECK(dhlo_engine_create(toy::model().get(), &options, &other) == DHLO_INVALID_ARGUMENT);
}

#if COUNTS_ALLOCATIONS
// Wherever memory is short in a step: each choice ends once, and the engine serves others then.
void test_short_memory() {
  for (int64_t left = 0; left < 60; ++left) {
    dhlo_engine_options options = options_of(9, 64, false);
    options.prompt_lookup = 3;
    options.preemption = DHLO_PREEMPTION_SWAP;
    dhlo::Engine engine(toy::model(), &options);
    dhlo_sampling sampling = greedy_sampling(40);
    sampling.logprobs = 2;
    Random random{static_cast<uint64_t>(left)};
    for (int i = 0; i < 3; ++i) {
      sampling.n = 1 + i;
      engine.submit(prompt_of(random, 30), &sampling);
    }
    allocations_left = left;
    for (int i = 0; i < 30; ++i) engine.step();
    allocations_left = -1;
    const std::vector<int32_t> prompt = prompt_of(random, 20);
    sampling.n = 1;
    const uint64_t id = engine.submit(prompt, &sampling);
    while (engine.step()) continue;
    Answers answers;
    read(engine, answers, 7);
    CHECK(answers.size() == 7 && (answers[{id, 0}].tokens == toy::greedy(prompt, 40)));
    for (const auto& [key, told] : answers)
      CHECK(told.finish == DHLO_FINISH_LENGTH ? told.tokens.size() == 40 : told.error == "out of memory");
    check_idle(engine);
  }
}
#endif

// Drafts of a model: tokens are the same, greedy or sampled, however often it is right, and in any company.
void test_draft_model() {
  const dhlo::Model same = toy::model(), often = toy::model<toy::Kind::kOften>(),
                    fails = toy::model<toy::Kind::kFails>();
  for (uint64_t seed = 0; seed < 2; ++seed) {
    for (const dhlo::Model* model : {&same, &often, &fails}) {
      test_greedy(200, 64, 0, seed, model);
      test_greedy(9, 32, 4, seed, model);
      test_greedy(9, 32, 4, seed, model, 0, 4);
    }
    test_greedy(30, 3, 2, seed, &often);
  }
  auto said = [&](const dhlo::Model* draft_model, double temperature, int64_t draft_blocks, dhlo_engine_stats& stats) {
    dhlo_engine_options options = options_of(100, 64, true);
    if (draft_model != nullptr) options.draft_model = draft_model->get();
    options.draft_cache_bytes = draft_blocks * toy::kBlock * 8;
    options.draft_branches = 1;
    dhlo::Engine engine(toy::model(), &options);
    Random random{17};
    for (int i = 0; i < 12; ++i) {
      dhlo_sampling sampling = greedy_sampling(100);
      sampling.temperature = temperature;
      sampling.repetition_penalty = i % 2 == 0 ? 1 : 1.1;
      sampling.has_seed = 1;
      sampling.seed = static_cast<uint64_t>(i);
      sampling.n = 1 + i % 2;
      engine.submit(prompt_of(random, 1 + random.below(100)), &sampling);
    }
    Answers answers;
    read(engine, answers, 18);
    check_idle(engine);
    stats = engine.stats();
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& [key, told] : answers) tokens.push_back(told.tokens);
    return tokens;
  };
  for (const double temperature : {0.0, 0.5}) {
    dhlo_engine_stats stats{};
    const auto want = said(nullptr, temperature, 0, stats);
    CHECK(stats.drafts == 0 && stats.draft_steps == 0);
    CHECK(said(&same, temperature, 0, stats) == want);
    // All but some behind penalties, which a draft's own tokens don't count for.
    CHECK(stats.accepted_tokens > stats.drafted_tokens * 9 / 10 && stats.drafted_tokens > 0 && stats.draft_steps > 0);
    CHECK(stats.accepted_at[0] <= stats.drafts && stats.accepted_at[0] >= stats.accepted_at[1]);
    CHECK(said(&often, temperature, 0, stats) == want);
    CHECK(stats.accepted_tokens > 0 && stats.accepted_tokens < stats.drafted_tokens);
    CHECK(said(&often, temperature, 5, stats) == want);  // too few blocks for most
    CHECK(said(&fails, temperature, 0, stats) == want);
    CHECK(stats.draft_failures > 0);
  }
}

// Drafts that are a tree: tokens are the same, and what a draft model holds second is of use where the first is wrong.
void test_trees_of_drafts() {
  const dhlo::Model second = toy::model<toy::Kind::kSecond>();
  toy::taken_us = 2000;  // so that long drafts pay
  double accepted[2] = {};
  for (const int32_t branches : {1, 4}) {
    dhlo_engine_options options = options_of(200, 64, true);
    options.draft_model = second.get();
    options.draft_branches = branches;
    dhlo::Engine engine(toy::model(), &options);
    Random random{3};
    std::vector<std::vector<int32_t>> prompts;
    for (int i = 0; i < 8; ++i) {
      prompts.push_back(prompt_of(random, 1 + random.below(60)));
      dhlo_sampling sampling = greedy_sampling(200);
      engine.submit(prompts.back(), &sampling);
    }
    Answers answers;
    read(engine, answers, 8);
    for (size_t i = 0; i < prompts.size(); ++i) CHECK((answers[{i + 1, 0}].tokens == toy::greedy(prompts[i], 200)));
    const dhlo_engine_stats stats = engine.stats();
    CHECK(stats.drafted_tokens > 2 * stats.drafts && stats.accepted_tokens > 0);
    accepted[branches > 1 ? 1 : 0] = static_cast<double>(stats.accepted_at[0]) / static_cast<double>(stats.drafts);
    check_idle(engine);
  }
  toy::taken_us = 0;
  CHECK(accepted[1] > 1.1 * accepted[0]);
}

// One that gives up its blocks to a longer prompt, in the step in which there was no room for it, comes again.
void test_short_prompts_beside_long_ones() {
  for (const int64_t length : {126, 100}) {
    const dhlo_engine_options options = options_of(8, 32, false);
    dhlo::Engine engine(toy::model(), &options);
    Random random{9};
    const std::vector<int32_t> first = prompt_of(random, length), second = prompt_of(random, 14);
    dhlo_sampling sampling = greedy_sampling(1);
    engine.submit(first, &sampling);
    engine.step();
    sampling.max_tokens = 20;
    const uint64_t id = engine.submit(second, &sampling);
    while (engine.step()) continue;
    Answers answers;
    read(engine, answers, 2);
    CHECK((answers[{id, 0}].tokens == toy::greedy(second, 20)));
    for (const auto& [key, told] : answers) CHECK(told.finish == DHLO_FINISH_LENGTH);
    CHECK(length == 100 || engine.stats().preemptions > 0);
  }
}

// Of a prompt whose last part is one token: choices part behind it, so that nothing is drafted before they do.
void test_drafts_wait_until_choices_part() {
  const dhlo::Model same = toy::model();
  dhlo_engine_options options = options_of(100, 16, false);
  options.draft_model = same.get();
  dhlo::Engine engine(toy::model(), &options);
  Random random{8};
  const std::vector<int32_t> first = prompt_of(random, 15), second = prompt_of(random, 2);
  dhlo_sampling sampling = greedy_sampling(20);
  sampling.speculate = 0;
  sampling.priority = -1;
  engine.submit(first, &sampling);  // leaves the other one a token of the first step
  sampling.priority = 0;
  sampling.speculate = 1;
  sampling.n = 3;
  const uint64_t id = engine.submit(second, &sampling);
  while (engine.step()) continue;
  Answers answers;
  read(engine, answers, 4);
  for (const auto& [key, told] : answers) CHECK(told.tokens == toy::greedy(key.first == id ? second : first, 20));
  CHECK(engine.stats().accepted_tokens > 0);
}

// Nothing is drafted where a draft model has no positions left.
void test_drafts_end_with_positions() {
  const dhlo::Model draft_model = toy::model();
  dhlo_engine_options options = options_of(40, 16, false);
  options.draft_model = draft_model.get();
  options.draft_max_positions = 24;
  dhlo::Engine engine(toy::model(), &options);
  Random random{9};
  const dhlo_sampling sampling = greedy_sampling(100);
  engine.submit(prompt_of(random, 8), &sampling);
  for (int i = 0; i < 24; ++i) engine.step();
  const int64_t drafted = engine.stats().drafted_tokens;
  CHECK(drafted > 0);
  while (engine.step()) continue;
  CHECK(engine.stats().drafted_tokens == drafted && engine.stats().draft_failures == 0);
}

// A draft model that doesn't see all of a prompt at once, and what it has seen is known to it later.
void test_draft_model_sees_prompts_in_parts() {
  const dhlo::Model draft_model = toy::model<toy::Kind::kOften>();
  dhlo_engine_options options = options_of(100, 16, false);
  options.draft_model = draft_model.get();
  dhlo::Engine engine(toy::model(), &options);
  Random random{5};
  const std::vector<int32_t> prompt = prompt_of(random, 200);
  const dhlo_sampling sampling = greedy_sampling(30);
  int64_t steps[2] = {};
  for (int64_t& each : steps) {
    const int64_t before = engine.stats().draft_steps;
    engine.submit(prompt, &sampling);
    while (engine.step() && engine.stats().drafts == 0) continue;
    each = engine.stats().draft_steps - before;
    while (engine.step()) continue;
    engine.poll(std::chrono::seconds(0));
  }
  CHECK(steps[0] >= 200 / 16 && steps[1] < 5);
}

// Sequences that share blocks are neighbours in a step, in whatever order they came.
void test_order() {
  dhlo_engine_options options = options_of(60, 512, false);
  dhlo::Engine engine(toy::model(), &options);
  Random random{1};
  const std::array<std::vector<int32_t>, 3> beginnings = {prompt_of(random, 40), prompt_of(random, 40),
                                                          prompt_of(random, 40)};
  Answers answers;
  auto submit = [&](const std::vector<int32_t>& beginning) {
    std::vector<int32_t> prompt = beginning;
    for (const int32_t token : prompt_of(random, 1 + random.below(40))) prompt.push_back(token);
    const dhlo_sampling sampling = greedy_sampling(6);
    return engine.submit(prompt, &sampling);
  };
  auto work = [&] {
    while (engine.step()) {
    }
  };
  for (const std::vector<int32_t>& beginning : beginnings) submit(beginning);
  work();  // the cache knows them from here on
  toy::turns = 0;
  for (int i = 0; i < 8; ++i) submit(beginnings[static_cast<size_t>(i % 3)]);
  const dhlo_engine_stats before = engine.stats();
  work();
  CHECK(engine.stats().steps - before.steps == 6 && toy::turns == 6 * 2);
  read(engine, answers, 11);
}

// Requests of a token each, in the order in which they end; `submit` gives the number that stands for one.
struct Queue {
  dhlo::Engine engine;
  Random random{5};
  std::map<uint64_t, int> numbers;
  std::vector<int> ended;

  explicit Queue(int64_t step_tokens, int64_t sequences = 8)
      : engine(toy::model(), options_of(step_tokens, sequences)) {}
  static const dhlo_engine_options* options_of(int64_t step_tokens, int64_t sequences) {
    static dhlo_engine_options options;
    options = ::options_of(100, step_tokens, false);
    options.max_sequences = sequences;
    return &options;
  }
  void submit(int number, const std::vector<int32_t>& prompt, int32_t priority = 0) {
    dhlo_sampling sampling = greedy_sampling(1);
    sampling.priority = priority;
    numbers[engine.submit(prompt, &sampling)] = number;
  }
  void submit(int number, int64_t tokens, int32_t priority = 0) { submit(number, prompt_of(random, tokens), priority); }
  bool step() {
    if (!engine.step()) return false;
    for (const dhlo_event* event : engine.poll(std::chrono::seconds(0))) {
      CHECK(event->finish == DHLO_FINISH_LENGTH);
      ended.push_back(numbers[event->request]);
    }
    return true;
  }
  const std::vector<int>& all() {
    while (step()) continue;
    check_idle(engine);
    return ended;
  }
};

// Prompts go by priority, then by when they came and how long they are.
void test_order_of_prompts() {
  for (const int64_t sequences : {1, 8}) {
    Queue queue(8, sequences);
    queue.submit(0, 100);
    queue.submit(1, 30);
    queue.submit(2, 20);
    queue.submit(3, 30);
    queue.submit(4, 200, -1);
    CHECK((queue.all() == std::vector<int>{4, 2, 1, 3, 0}));
  }
  {
    Queue begun(8);  // a long one gives way, and goes on where it was
    begun.submit(0, 100);
    for (int i = 0; i < 5; ++i) begun.step();
    begun.submit(1, 60);
    begun.submit(2, 20);
    CHECK((begun.all() == std::vector<int>{2, 0, 1}));
    CHECK(begun.engine.stats().prompt_tokens == 180);
  }
  {
    Queue queue(8);  // none waits for ever: a step of others' after each, and 160 tokens of shorter ones come first
    queue.submit(-1, 40);
    for (int i = 0; i < 60; ++i) {
      queue.submit(i, 8);
      queue.step();
    }
    const std::vector<int>& ended = queue.all();
    const auto at = std::find(ended.begin(), ended.end(), -1) - ended.begin();
    CHECK(at == 16);
    CHECK(std::is_sorted(ended.begin() + at + 1, ended.end()) && ended.size() == 61);
  }
  {
    Queue queue(8);  // what the cache knows doesn't count
    std::vector<int32_t> known = prompt_of(queue.random, 96);
    queue.submit(0, known);
    queue.all();
    for (const int32_t token : prompt_of(queue.random, 20)) known.push_back(token);
    queue.submit(1, 30);
    queue.submit(2, known);
    CHECK((queue.all() == std::vector<int>{0, 2, 1}));
    CHECK(queue.engine.stats().cached_tokens == 96);
  }
}

void test_failures() {
  dhlo_engine_options options = options_of(20, 64, true);
  dhlo::Engine engine(toy::model(), &options);
  const dhlo_sampling sampling = greedy_sampling(5);
  Answers answers;
  engine.submit({1, toy::kFails, 3}, &sampling);
  engine.submit({1, toy::kNan, 3}, &sampling);
  read(engine, answers, 2);
  for (const auto& [key, told] : answers) CHECK(told.finish == DHLO_FINISH_ERROR && !told.error.empty());
  answers.clear();
  const uint64_t id = engine.submit({1, 2}, &sampling);
  read(engine, answers, 1);
  CHECK((answers[{id, 0}].tokens == toy::greedy({1, 2}, 5)));
  check_idle(engine);
}

void test_what_is_refused() {
  const dhlo::Model model = toy::model();
  dhlo_engine* engine = nullptr;
  CHECK(dhlo_engine_create(nullptr, nullptr, &engine) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_engine_create(model.get(), nullptr, nullptr) == DHLO_INVALID_ARGUMENT);
  dhlo_engine_options unset{};
  CHECK(dhlo_engine_create(model.get(), &unset, &engine) == DHLO_INVALID_ARGUMENT);
  dhlo_engine_options options = options_of(4, 16, false);
  options.vocabulary_offsets = nullptr;
  const dhlo::Model draft_model = toy::model();
  options.draft_model = draft_model.get();
  for (const int64_t wrong : {int64_t{-1}, int64_t{17}, INT64_MIN, INT64_MAX}) {
    options.draft_tokens = wrong;
    CHECK(dhlo_engine_create(model.get(), &options, &engine) == DHLO_INVALID_ARGUMENT);
  }
  options.draft_tokens = 4;
  for (const int64_t wrong : {int64_t{-1}, int64_t{1}, INT64_MIN}) {
    options.draft_cache_bytes = wrong;
    CHECK(dhlo_engine_create(model.get(), &options, &engine) == DHLO_INVALID_ARGUMENT);
  }
  options.draft_cache_bytes = 0;
  options.draft_model = nullptr;
  CHECK(dhlo_engine_create(model.get(), &options, &engine) == DHLO_OK);
  uint64_t id = 0;
  const int32_t prompt[] = {1, 2, 3};
  CHECK(dhlo_engine_submit(engine, nullptr, 3, nullptr, &id) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_engine_submit(engine, prompt, -1, nullptr, &id) == DHLO_INVALID_ARGUMENT);
  CHECK(dhlo_engine_submit(engine, prompt, 3, nullptr, nullptr) == DHLO_INVALID_ARGUMENT);
  dhlo_sampling sampling = greedy_sampling(5);
  sampling.constrained = 1;
  CHECK(dhlo_engine_submit(engine, prompt, 3, &sampling, &id) == DHLO_INVALID_ARGUMENT);
  CHECK(std::string(dhlo_serve_last_error()).find("no hook") != std::string::npos);
  sampling = greedy_sampling(int64_t{1} << 62);
  sampling.timeout_ns = INT64_MAX;
  CHECK(dhlo_engine_submit(engine, prompt, 3, &sampling, &id) == DHLO_OK);
  const std::vector<int32_t> longer(64, 1);
  CHECK(dhlo_engine_submit(engine, longer.data(), 64, nullptr, &id) == DHLO_INVALID_ARGUMENT);
  int32_t worked = 0;
  int64_t steps = 0;
  while (dhlo_engine_step(engine, &worked) == DHLO_OK && worked != 0) ++steps;
  CHECK(steps >= 61);  // up to the last position
  CHECK(dhlo_engine_cancel(engine, 77) == DHLO_OK);
  dhlo_engine_stats stats{};
  CHECK(dhlo_engine_get_stats(engine, &stats) == DHLO_INVALID_ARGUMENT);
  const dhlo_event* const* events = nullptr;
  int64_t count = 0;
  CHECK(dhlo_engine_poll(engine, 0, &events, &count) == DHLO_OK && count > 0);
  CHECK(dhlo_engine_poll(engine, 0, &events, &count) == DHLO_OK && count == 0);
  CHECK(dhlo_engine_close(engine) == DHLO_OK && dhlo_engine_close(engine) == DHLO_OK);
  CHECK(dhlo_engine_poll(engine, -1, &events, &count) == DHLO_CANCELLED);
  CHECK(dhlo_engine_submit(engine, prompt, 3, nullptr, &id) == DHLO_BUSY);
  dhlo_engine_destroy(engine);
  dhlo_engine_destroy(nullptr);
}

// Pairs of hosts that were built with other headers than this one lie as far apart as they say.
void test_adapters() {
  bool refused = false;
  try {
    toy::model<toy::Kind::kAdapted, DHLO_I32>();
  } catch (const dhlo::RuntimeError& error) {
    refused = error.status() == DHLO_FORMAT;
  }
  CHECK(refused);
  const dhlo::Model model = toy::model<toy::Kind::kAdapted>();
  const dhlo_engine_options options = options_of(20, 64, true);
  dhlo::Engine engine(model, &options);
  const std::array<float, 6> a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 10, 11, 12};
  struct Later {
    dhlo_lora_pair pair;
    int64_t more;
  };
  auto fill = [&](dhlo_lora_pair& pair, const char* module, size_t bytes) {
    dhlo_lora_pair_init(&pair);
    pair.struct_bytes = static_cast<uint32_t>(bytes);
    pair.module = module;
    pair.rank = toy::kRank;
    pair.inputs = pair.outputs = toy::kWidth;
    pair.a = a.data();
    pair.b = b.data();
  };
  std::vector<dhlo_lora_pair> now(2);
  std::array<Later, 2> later{};
  for (size_t i = 0; i < 2; ++i) {
    const char* module = i == 0 ? "up" : "layers.0.down";
    fill(now[i], module, sizeof(dhlo_lora_pair));
    fill(later[i].pair, module, sizeof(Later));
    later[i].more = -1;
  }
  engine.load_adapter("now", now);
  CHECK(dhlo_engine_load_adapter(engine.get(), "later", &later[0].pair, 2) == DHLO_OK);
  const std::vector<int32_t> prompt = {1, 2, 3};
  std::array<std::vector<int32_t>, 3> said;
  for (size_t i = 0; i < 3; ++i) {
    dhlo_sampling how = greedy_sampling(12);
    how.adapter = i == 0 ? nullptr : i == 1 ? "now" : "later";
    engine.submit(prompt, &how);
    Answers answers;
    read(engine, answers, 1);
    said[i] = answers.begin()->second.tokens;
  }
  CHECK(said[0] != said[1] && said[1] == said[2]);
  engine.unload_adapter("later");
  const uint32_t bytes = sizeof(dhlo_lora_pair);
  for (const uint32_t wrong : {uint32_t{0}, uint32_t{8}, bytes - 8, bytes + 1, uint32_t{1} << 30}) {
    now[0].struct_bytes = wrong;
    CHECK(dhlo_engine_load_adapter(engine.get(), "wrong", now.data(), 1) == DHLO_INVALID_ARGUMENT);
    CHECK(std::string(dhlo_serve_last_error()).find("struct_bytes is not set") != std::string::npos);
  }
  now[0].struct_bytes = bytes;
  now[1].struct_bytes = bytes + 8;
  CHECK(dhlo_engine_load_adapter(engine.get(), "wrong", now.data(), 2) == DHLO_INVALID_ARGUMENT);
  CHECK(std::string(dhlo_serve_last_error()).find("the same struct_bytes") != std::string::npos);
}

// A hook that calls what would wait for itself: refused, and the engine goes on.
void test_hooks_that_call_back() {
  for (const bool own_thread : {true, false}) {
    dhlo_engine* engine = nullptr;
    dhlo_engine_options options = options_of(20, 64, own_thread);
    options.constrain_ctx = &engine;
    options.constrain = [](void* ctx, uint64_t, void*, int32_t, const int32_t*, int64_t, uint32_t*,
                           int64_t) -> int32_t {
      dhlo_engine* engine = *static_cast<dhlo_engine**>(ctx);
      const dhlo_event* const* events = nullptr;
      int64_t count = 0;
      CHECK(dhlo_engine_close(engine) == DHLO_INVALID_ARGUMENT);
      CHECK(std::string(dhlo_serve_last_error()).find("by a hook") != std::string::npos);
      CHECK(dhlo_engine_drain(engine, -1) == DHLO_INVALID_ARGUMENT);
      CHECK(dhlo_engine_step(engine, nullptr) == DHLO_INVALID_ARGUMENT);
      CHECK(dhlo_engine_poll(engine, -1, &events, &count) == DHLO_INVALID_ARGUMENT);
      dhlo_engine_destroy(engine);
      return 0;
    };
    CHECK(dhlo_engine_create(toy::model().get(), &options, &engine) == DHLO_OK);
    dhlo_sampling sampling = greedy_sampling(4);
    sampling.constrained = 1;
    const int32_t prompt[] = {1, 2};
    uint64_t id = 0;
    CHECK(dhlo_engine_submit(engine, prompt, 2, &sampling, &id) == DHLO_OK);
    CHECK(dhlo_engine_drain(engine, int64_t{60} * 1000000000) == DHLO_OK);
    dhlo_engine_stats stats{};
    stats.struct_bytes = sizeof stats;
    CHECK(dhlo_engine_get_stats(engine, &stats) == DHLO_OK && stats.finished[DHLO_FINISH_LENGTH] == 1);
    dhlo_engine_destroy(engine);
  }
}

// The child of a fork has no thread of the engine's: nothing waits for it.
void test_fork() {
  dhlo_engine_options options = options_of(20, 64, true);
  dhlo_engine* engine = nullptr;
  CHECK(dhlo_engine_create(toy::model().get(), &options, &engine) == DHLO_OK);
  const int32_t prompt[] = {1, 2};
  uint64_t id = 0;
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const dhlo_event* const* events = nullptr;
    int64_t count = 0;
    dhlo_engine_stats stats{};
    stats.struct_bytes = sizeof stats;
    bool fine = dhlo_engine_submit(engine, prompt, 2, nullptr, &id) == DHLO_INVALID_ARGUMENT;
    fine &= dhlo_engine_cancel(engine, 1) == DHLO_INVALID_ARGUMENT;
    fine &= dhlo_engine_poll(engine, -1, &events, &count) == DHLO_INVALID_ARGUMENT;
    fine &= dhlo_engine_drain(engine, -1) == DHLO_INVALID_ARGUMENT;
    fine &= dhlo_engine_get_stats(engine, &stats) == DHLO_INVALID_ARGUMENT;
    fine &= dhlo_engine_close(engine) == DHLO_OK;
    dhlo_engine_destroy(engine);
    _exit(fine ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(dhlo_engine_submit(engine, prompt, 2, nullptr, &id) == DHLO_OK);
  CHECK(dhlo_engine_drain(engine, -1) == DHLO_OK);
  dhlo_engine_destroy(engine);
}

// Numbers of elements that nothing can have.
void test_sizes() {
  dhlo_engine_options options = options_of(20, 64, true);
  dhlo_engine* engine = nullptr;
  CHECK(dhlo_engine_create(toy::model().get(), &options, &engine) == DHLO_OK);
  const int32_t tokens[] = {1, 2};
  const float bias[] = {0, 0};
  const char* const stops[] = {"a"};
  for (const int64_t size : {int64_t{-1}, INT64_MIN, int64_t{1} << 62, INT64_MAX}) {
    auto refused = [&](const dhlo_sampling& sampling, int64_t num_tokens) {
      uint64_t id = 0;
      return dhlo_engine_submit(engine, tokens, num_tokens, &sampling, &id) == DHLO_INVALID_ARGUMENT;
    };
    dhlo_sampling sampling = greedy_sampling(1);
    CHECK(refused(sampling, size));
    sampling.bias_tokens = tokens;
    sampling.bias = bias;
    sampling.num_bias = size;
    CHECK(refused(sampling, 2));
    sampling = greedy_sampling(1);
    sampling.stop_tokens = tokens;
    sampling.num_stop_tokens = size;
    CHECK(refused(sampling, 2));
    sampling = greedy_sampling(1);
    sampling.stops = stops;
    sampling.num_stops = size;
    CHECK(refused(sampling, 2));
    sampling.num_stops = 1;
    sampling.stop_bytes = &size;
    CHECK(refused(sampling, 2));
    sampling = greedy_sampling(1);
    sampling.salt = "a";
    sampling.salt_bytes = size;
    CHECK(refused(sampling, 2));
  }
  dhlo_engine_destroy(engine);
}

// Hooks: events by a function that throws, constraints that allow one token, that throw, that allow none.
void test_hooks() {
  struct Seen {
    std::atomic<int64_t> events{0}, ended{0};
  } seen;
  dhlo_engine_options options = options_of(20, 64, true);
  options.event_ctx = &seen;
  options.on_event = [](void* ctx, const dhlo_event* const* events, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      ++static_cast<Seen*>(ctx)->events;
      static_cast<Seen*>(ctx)->ended += events[i]->last;
      if (events[i]->user != nullptr && events[i]->finish == DHLO_FINISH_LENGTH)
        CHECK(events[i]->num_tokens > 0 && events[i]->tokens[0] == 5);
    }
    throw std::runtime_error("the host's");
  };
  options.constrain = [](void*, uint64_t, void* user, int32_t, const int32_t*, int64_t count, uint32_t* allowed,
                         int64_t words) -> int32_t {
    const int64_t mode = *static_cast<int64_t*>(user);
    if (mode == 1 && count == 2) throw std::runtime_error("the host's");
    for (int64_t i = 0; i < words; ++i) allowed[i] = 0;
    if (mode != 2) allowed[0] = 1u << 5;
    return 0;
  };
  dhlo::Engine engine(toy::model(), &options);
  int64_t modes[] = {0, 1, 2};
  for (int64_t& mode : modes) {
    dhlo_sampling sampling = greedy_sampling(4);
    sampling.constrained = 1;
    sampling.user = &mode;
    engine.submit({1, 2}, &sampling);
  }
  CHECK(engine.drain(std::chrono::seconds(60)));
  for (int i = 0; i < 1000 && seen.ended < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(seen.ended == 3);
  CHECK(engine.stats().finished[DHLO_FINISH_ERROR] == 2 && engine.stats().finished[DHLO_FINISH_LENGTH] == 1);
}

// A new folder for blocks, removed in the end.
struct BlocksFolder {
  char path[32] = "/tmp/dhlo-engine-XXXXXX";
  std::array<uint8_t, 32> digest{1, 2, 3};  // of the model

  BlocksFolder() { CHECK(mkdtemp(path) != nullptr); }
  BlocksFolder(const BlocksFolder&) = delete;
  BlocksFolder& operator=(const BlocksFolder&) = delete;
  ~BlocksFolder() { std::filesystem::remove_all(path); }
  void use(dhlo_engine_options& options) const {
    options.cache_folder = path;
    options.cache_folder_bytes = 1 << 20;
    options.model_digest = digest.data();
  }
};

// Many threads that submit and cancel, one that polls, with deadlines and pools that are too small.
void test_threads(int64_t rounds) {
  const BlocksFolder folder;
  dhlo_engine_options options = options_of(12, 16, true);
  folder.use(options);
  options.prompt_lookup = 3;
  options.max_waiting = 1 << 20;
  dhlo::Engine engine(toy::model(), &options);
  std::atomic<int64_t> ended{0}, submitted{0};
  std::thread poller([&] {
    try {
      for (;;)
        for (const dhlo_event* event : engine.poll(std::chrono::seconds(60))) ended += event->last;
    } catch (const dhlo::RuntimeError& error) {
      CHECK(error.status() == DHLO_CANCELLED);
    }
  });
  std::vector<std::thread> clients;
  for (uint64_t t = 0; t < 3; ++t)
    clients.emplace_back([&, t] {
      Random random{t + 1};
      for (int64_t i = 0; i < rounds; ++i) {
        dhlo_sampling sampling = greedy_sampling(1 + random.below(30));
        sampling.n = static_cast<int32_t>(1 + random.below(3));
        sampling.temperature = random.below(2) != 0 ? 1 : 0;
        sampling.timeout_ns = random.below(4) == 0 ? 1 + random.below(3000000) : 0;
        sampling.priority = static_cast<int32_t>(random.below(3));
        const uint64_t id = engine.submit(prompt_of(random, 1 + random.below(60)), &sampling);
        ++submitted;
        if (random.below(3) == 0) engine.cancel(id);
        if (random.below(8) == 0) engine.stats();
      }
    });
  for (std::thread& client : clients) client.join();
  CHECK(engine.drain(std::chrono::seconds(120)));
  check_idle(engine);
  engine.close();
  poller.join();
  CHECK(ended == submitted);
}

void test_closing_with_requests_in_work() {
  for (const bool own_thread : {true, false}) {
    dhlo_engine_options options = options_of(40, 64, own_thread);
    dhlo::Engine engine(toy::model(), &options);
    const dhlo_sampling sampling = greedy_sampling(600);
    for (int i = 0; i < 20; ++i) engine.submit({1, 2, 3}, &sampling);
    if (!own_thread) engine.step();
    engine.close();
    Answers answers;
    read(engine, answers, 20);
    // A thread of the engine's may have been quick.
    for (const auto& [key, told] : answers)
      CHECK(told.finish == DHLO_FINISH_CANCELLED || (own_thread && told.tokens.size() == 600));
  }
}

// What engines kept in a folder is known to later ones, whoever runs their steps, and to a queue of requests.
void test_folder() {
  const BlocksFolder folder;
  Random random{11};
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 20; ++i) prompts.push_back(prompt_of(random, 60 + random.below(60)));
  int64_t known = 0;
  for (const auto& prompt : prompts) known += (static_cast<int64_t>(prompt.size()) - 1) / toy::kBlock * toy::kBlock;
  const dhlo_sampling sampling = greedy_sampling(5);
  for (int round = 0; round < 4; ++round) {
    dhlo_engine_options options = options_of(round < 2 ? 400 : 20, 64, round % 2 == 0);
    folder.use(options);
    dhlo::Engine engine(toy::model(), &options);
    std::map<uint64_t, const std::vector<int32_t>*> asked;
    for (const auto& prompt : prompts) asked[engine.submit(prompt, &sampling)] = &prompt;
    CHECK(engine.drain(std::chrono::seconds(60)));
    Answers answers;
    read(engine, answers, prompts.size());
    for (const auto& [key, told] : answers) CHECK(told.tokens == toy::greedy(*asked[key.first], 5));
    const dhlo_engine_stats stats = engine.stats();
    CHECK(stats.cached_tokens == (round == 0 ? 0 : known));
    CHECK(stats.folder.failures == 0 && stats.folder.dropped == 0);
    CHECK(round == 0 || stats.folder.hits >= known / toy::kBlock);
    check_idle(engine);
    engine.close();
    CHECK(engine.stats().folder.blocks >= known / toy::kBlock);
  }
}

// Decoding allocates nothing; what the host's part of a step takes is printed.
void test_steady_state() {
  dhlo_engine_options options = options_of(32 * 40, 64, false);
  options.max_sequences = 32;
  dhlo::Engine engine(toy::model(), &options);
  const dhlo_sampling sampling = greedy_sampling(400);
  Random random{3};
  for (int i = 0; i < 32; ++i) engine.submit(prompt_of(random, 60), &sampling);
  for (int i = 0; i < 100; ++i) {
    engine.step();
    engine.poll(std::chrono::seconds(0));
  }
  const dhlo_engine_stats before = engine.stats();
  const int64_t allocated = allocations;
  int64_t steps = 0;
  for (; steps < 200; ++steps) {
    engine.step();
    engine.poll(std::chrono::seconds(0));
  }
  const dhlo_engine_stats after = engine.stats();
  std::printf("scheduler and cache: %.1f us a step at 32 sequences; allocations %lld in %lld steps\n",
              static_cast<double>(after.schedule_ns - before.schedule_ns) * 1e-3 / static_cast<double>(steps),
              static_cast<long long>(allocations - allocated), static_cast<long long>(steps));
  CHECK(!COUNTS_ALLOCATIONS || allocations - allocated < 4 * 32);  // tables of sequences grow by powers of two
}

// ---- the sampler ----------------------------------------------------------------------------------------------------

// The probabilities that a request's tokens are drawn by, the slow way.
std::vector<double> probabilities(const std::vector<float>& x, const Rules& rules) {
  std::vector<size_t> order(x.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  std::vector<double> p(x.size());
  for (size_t i = 0; i < x.size(); ++i) p[i] = std::exp((x[i] - x[order[0]]) / rules.temperature);
  size_t keep = x.size();
  if (rules.top_k > 0) keep = std::min(keep, static_cast<size_t>(rules.top_k));
  double total = 0;
  for (size_t i = 0; i < keep; ++i) total += p[order[i]];
  double sum = 0;
  for (size_t i = 0; i < keep && rules.top_p < 1; ++i) {
    sum += p[order[i]];
    if (sum >= rules.top_p * total) keep = i + 1;
  }
  for (size_t i = 0; i < x.size(); ++i)
    if (i >= keep || p[order[i]] < rules.min_p) p[order[i]] = 0;
  total = 0;
  for (const double each : p) total += each;
  for (double& each : p) each /= total;
  return p;
}

void test_distribution(int64_t vocabulary, double temperature, int64_t top_k, double top_p, double min_p) {
  Random random{static_cast<uint64_t>(vocabulary)};
  std::vector<float> x(static_cast<size_t>(vocabulary));
  for (float& each : x) each = static_cast<float>(random.below(40)) * 0.125f;  // with many that are equal
  Rules rules;
  rules.temperature = temperature;
  rules.top_k = top_k;
  rules.top_p = top_p;
  rules.min_p = min_p;
  rules.seed = 5;
  Sampler sampler(vocabulary, DHLO_F32);
  const std::vector<double> p = probabilities(x, rules);
  const int64_t draws = 40000;
  std::vector<int64_t> counts(x.size());
  for (int64_t i = 0; i < draws; ++i) {
    CHECK(sampler.draw(x.data(), rules, nullptr, nullptr, 0, i) == Draw::kDone);
    ++counts[static_cast<size_t>(sampler.token())];
  }
  double chi = 0, cells = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = p[i] * static_cast<double>(draws);
    if (p[i] == 0) {
      CHECK(counts[i] == 0);
      continue;
    }
    chi += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
    ++cells;
  }
  CHECK(chi < cells + 6 * std::sqrt(2 * cells) + 6);
}

// Loops give the same in all instruction sets: all numbers of 16 bits as f32, then what is found in rows of such.
void test_lanes() {
  constexpr int64_t all = 1 << 16;
  std::vector<uint16_t> bits(all);
  std::iota(bits.begin(), bits.end(), uint16_t{0});
  std::vector<float> x(all), y(all), w(all), parts(all), first;
  std::vector<int32_t> places(all);
  const float least[dhlo::serve::kWays] = {1e30f, 7, 2, 1, 0.5f, 0, -1, -INFINITY};
  for (const Lanes* each : dhlo::serve::all_lanes()) {
    each->widen_bf16(bits.data(), all, x.data());
    each->widen_f16(bits.data(), all, y.data());
    std::vector<float> found = y;
    for (const int64_t n : {16, 48, 512, 528, 2000, 65536 - 16}) {
      const float* row = y.data() + (65536 - 16 - n) / 2;  // has NaN and infinities where it's long
      const dhlo::serve::Peak peak = each->peak(row, n);
      const int64_t maxima = each->maxima(row, n, parts.data());
      found.insert(found.end(), parts.begin(), parts.begin() + maxima);
      for (int64_t i = 0; i < n; ++i) w[static_cast<size_t>(i)] = static_cast<float>(i % 7) / 8;
      double masses[2][dhlo::serve::kWays];
      each->masses(row, w.data(), n, least, masses[0]);
      each->masses(row, nullptr, n, least, masses[1]);
      for (const double mass : masses[0]) found.push_back(static_cast<float>(mass));
      for (const double mass : masses[1]) found.push_back(static_cast<float>(mass));
      const int64_t count = each->select(row, n, 0.5f, 7, places.data());
      found.insert(found.end(), places.begin(), places.begin() + count);
      const int64_t equal = each->drop(row, n, 0.5f, w.data(), parts.data());
      found.insert(found.end(), parts.begin(), parts.begin() + (n + dhlo::serve::kBlock - 1) / dhlo::serve::kBlock);
      found.insert(found.end(), w.begin(), w.begin() + n);
      for (const int64_t number : {count, equal, int64_t{peak.nan}, maxima})
        found.push_back(static_cast<float>(number));
      found.push_back(peak.value);
    }
    if (first.empty()) {
      first = found;
      for (size_t i = 0; i < bits.size(); ++i) {
        uint32_t as_bf16 = 0;
        std::memcpy(&as_bf16, &x[i], sizeof as_bf16);
        CHECK(as_bf16 == uint32_t{bits[i]} << 16);
      }
    }
    CHECK(found.size() == first.size() && std::memcmp(found.data(), first.data(), 4 * found.size()) == 0);
  }
}

// Each draw is where its random number lies among the tokens that are left, with many kinds of rows and rules.
void test_draws() {
  Random random{17};
  for (const int64_t size : {1, 40, 64, 65, 1000, 6000}) {
    std::vector<Sampler> samplers;
    for (const Lanes* each : dhlo::serve::all_lanes()) samplers.emplace_back(size, DHLO_F32, *each);
    std::vector<float> x(static_cast<size_t>(size));
    for (int kind = 0; kind < 6; ++kind) {
      for (float& each : x) {
        const auto at = static_cast<float>(random.below(1 << 20)) * 0x1p-20f;
        const float spread[] = {10 * at,       1, std::round(24 * at) / 8, 12 * at * at * at * at, 1e30f * at,
                                1 + 1e-6f * at};
        each = spread[kind];
        if (kind == 3 && random.below(4) == 0) each = -std::numeric_limits<float>::infinity();
      }
      x[0] = 1;
      for (int i = 0; i < 200; ++i) {
        Rules rules;
        rules.temperature = i % 3 == 0 ? 1 : 0.3 + 0.1 * i / 20;
        const int64_t counts[] = {0, 1 + random.below(8), 50, 1 + random.below(size), 2 * size};
        const double parts[] = {1, 0.8837, 0.0137, 0.9999, 1e-9}, least[] = {0, 0, 0.03, 1};
        rules.top_k = counts[i % 5];
        rules.top_p = parts[i / 5 % 5];
        rules.min_p = least[i / 25 % 4];
        rules.seed = static_cast<uint64_t>(i);
        const std::vector<double> p = probabilities(x, rules);
        const double u = dhlo::serve::uniform(rules.seed, 1, i);
        for (Sampler& sampler : samplers) {
          CHECK(sampler.draw(x.data(), rules, nullptr, nullptr, 1, i) == Draw::kDone);
          const auto token = static_cast<size_t>(sampler.token());
          const double before = std::accumulate(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(token), 0.);
          CHECK(p[token] > 0 && before <= u + 1e-5 && before + p[token] >= u - 1e-5);
        }
      }
    }
  }
}

// Few likely tokens far above many others: what a small top_p leaves is found where sums of what is kept already are
// beyond what is left out.
void test_draws_of_humps() {
  std::vector<float> x(32000, -3.099f);
  std::fill(x.begin() + 100, x.begin() + 600, -0.693f);
  x[0] = 0;
  Rules rules;
  rules.temperature = 1;
  rules.top_p = 0.1;
  const std::vector<double> p = probabilities(x, rules);
  for (const Lanes* each : dhlo::serve::all_lanes()) {
    Sampler sampler(32000, DHLO_F32, *each);
    for (int i = 0; i < 20; ++i) {
      CHECK(sampler.draw(x.data(), rules, nullptr, nullptr, 1, i) == Draw::kDone);
      CHECK(p[static_cast<size_t>(sampler.token())] > 0);
    }
  }
}

void test_sampler() {
  test_lanes();
  test_draws();
  test_draws_of_humps();
  test_distribution(7, 1, 0, 1, 0);
  test_distribution(50, 0.7, 0, 0.8, 0);
  test_distribution(50, 1.3, 9, 1, 0);
  test_distribution(333, 1, 40, 0.9, 0.05);
  test_distribution(1500, 2, 0, 0.5, 0);
  test_distribution(1, 1, 3, 0.5, 0.5);
  // Known answers of Philox 4x32-10.
  CHECK((dhlo::serve::philox({0, 0, 0, 0}, {0, 0}) ==
         std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((dhlo::serve::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
         std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t size : {1, 15, 16, 17, 100, 1000}) {
    Sampler sampler(size, DHLO_F32);
    Rules greedy;
    greedy.temperature = 0;
    std::vector<float> x(static_cast<size_t>(size), 1);
    CHECK(sampler.draw(x.data(), greedy, nullptr, nullptr, 0, 0) == Draw::kDone && sampler.token() == 0);
    x.back() = 2;
    CHECK(sampler.draw(x.data(), greedy, nullptr, nullptr, 0, 0) == Draw::kDone && sampler.token() == size - 1);
    x.back() = inf;
    CHECK(sampler.draw(x.data(), {}, nullptr, nullptr, 0, 0) == Draw::kDone && sampler.token() == size - 1);
    x.back() = nan;
    CHECK(sampler.draw(x.data(), greedy, nullptr, nullptr, 0, 0) == Draw::kNan);
    std::fill(x.begin(), x.end(), -inf);
    CHECK(sampler.draw(x.data(), {}, nullptr, nullptr, 0, 0) == Draw::kNothing);
  }
}

// Logits of bf16 and f16, beside the conversions of the wrapper.
template <class Small>
void test_small_floats(int32_t dtype) {
  std::vector<Small> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Small value = Small::from_bits(static_cast<uint16_t>(bits));
    if (!std::isnan(static_cast<float>(value)) && static_cast<float>(value) < 1) x.push_back(value);
  }
  const size_t at = x.size() / 2;
  x[at] = Small(1.f);
  Sampler sampler(static_cast<int64_t>(x.size()), dtype);
  Rules rules;
  rules.logprobs = 3;
  rules.temperature = 0;
  CHECK(sampler.draw(x.data(), rules, nullptr, nullptr, 0, 0) == Draw::kDone);
  CHECK(sampler.token() == static_cast<int32_t>(at));
  double total = 0;
  for (const Small each : x) total += std::exp(static_cast<double>(static_cast<float>(each)));
  CHECK(std::fabs(sampler.logprob() - (1 - std::log(total))) < 1e-4);
}

void test_stops() {
  using dhlo::serve::StopState;
  using dhlo::serve::StopString;
  const std::string bytes = "aabab";  // tokens: "aa", "b", "ab", ""
  const int64_t offsets[] = {0, 2, 3, 5, 5};
  const dhlo::serve::Vocabulary vocabulary(bytes.data(), offsets, 4);
  const std::vector<StopString> stops{StopString("aabx"), StopString("bb")};
  StopState state;
  CHECK(state.take(stops, vocabulary, 0) == -1 && state.held() == 1);  // aa
  CHECK(state.take(stops, vocabulary, 3) == -1 && state.held() == 2);
  CHECK(state.take(stops, vocabulary, 2) == -1 && state.held() == 3);  // aaab ends with aab
  CHECK(state.take(stops, vocabulary, 1) == 1);                        // aaabb
  StopState other;
  CHECK(other.take(stops, vocabulary, 2) == -1 && other.held() == 1);  // ab: b may begin bb
  CHECK(other.take(stops, vocabulary, 0) == -1 && other.held() == 1);
}

void time_sampling() {
  const int64_t rows = 32, vocabulary = 32000;
  std::vector<float> x(static_cast<size_t>(rows * vocabulary));
  Random random{9};
  for (float& each : x) each = static_cast<float>(random.below(1 << 20)) * 1e-5f;
  Sampler sampler(vocabulary, DHLO_F32);
  Rules greedy, plain, cut;
  greedy.temperature = 0;
  cut.top_p = 0.9;
  cut.top_k = 50;
  Rules by_mass = cut, by_least;
  by_mass.top_k = 0;
  by_least.min_p = 0.05;
  const std::pair<const char*, const Rules*> all[] = {
      {"greedy", &greedy}, {"sampled", &plain}, {"top_k, top_p", &cut}, {"top_p", &by_mass}, {"min_p", &by_least}};
  for (const auto& [name, rules] : all) {
    double best = 1e9;
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto begin = std::chrono::steady_clock::now();
      for (int64_t row = 0; row < rows; ++row)
        sampler.draw(x.data() + row * vocabulary, *rules, nullptr, nullptr, 0, row);
      best =
          std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    std::printf("%s, 32 x 32,000: %.3f ms\n", name, best);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "time") {
    time_sampling();
    test_steady_state();
    return failures != 0;
  }
  const int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 60;
  test_sampler();
  test_small_floats<dhlo::bf16>(DHLO_BF16);
  test_small_floats<dhlo::f16>(DHLO_F16);
  test_stops();
  for (uint64_t seed = 0; seed < 3; ++seed) {
    test_greedy(200, 64, 0, seed);
    test_greedy(9, 8, 0, seed);  // preemption
    test_greedy(9, 512, 4, seed);
    test_greedy(30, 3, 2, seed);
    test_greedy(9, 1, 0, seed);
    test_greedy(9, 8, 0, seed, nullptr, 100);
    test_greedy(9, 64, 4, seed, nullptr, 6);
    test_greedy(5, 64, 4, seed, nullptr, 0, 3);  // with pools of fewer tokens than a sequence has
    test_greedy(9, 20, 4, seed, nullptr, 6, 4);
  }
  CHECK(swaps > 0);
  test_draft_model();
  test_draft_model_sees_prompts_in_parts();
  test_trees_of_drafts();
  test_short_prompts_beside_long_ones();
  test_drafts_wait_until_choices_part();
  test_drafts_end_with_positions();
  test_order();
  test_order_of_prompts();
  test_swapping();
#if COUNTS_ALLOCATIONS
  test_short_memory();
#endif
  test_failures();
  test_what_is_refused();
  test_adapters();
  test_hooks();
  test_hooks_that_call_back();
  test_fork();
  test_sizes();
  test_closing_with_requests_in_work();
  test_folder();
  test_steady_state();
  test_threads(rounds);
  if (failures == 0) std::printf("all passed\n");
  return failures != 0;
}
