// What tests of the engine share: requests, their events, and allocations that are counted and may fail. For one file of
// a program, whose allocations these are.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "../checks.hpp"
#include "dhlo/serve.hpp"
#include "toy_step.hpp"

#if COUNTS_ALLOCATIONS
inline int64_t allocations_left = -1;  // until they fail; below 0: they don't
// Not inlined: GCC 12 sees an allocation of its own freed by free() otherwise, and warns.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++allocations;
  if (allocations_left > 0) --allocations_left;
  if (allocations_left == 0) throw std::bad_alloc();
  if (void* data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* data) noexcept { std::free(data); }
__attribute__((noinline)) void operator delete(void* data, size_t) noexcept { std::free(data); }
#endif

struct Random {
  uint64_t state;
  int64_t below(int64_t bound) {
    state = toy::mixed(state, 1);
    return static_cast<int64_t>((state >> 11) % static_cast<uint64_t>(bound));
  }
};

inline std::vector<int32_t> prompt_of(Random& random, int64_t tokens) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i) prompt.push_back(static_cast<int32_t>(random.below(toy::kNan)));
  return prompt;
}

inline dhlo_engine_options options_of(int64_t blocks, int64_t step_tokens, bool own_thread) {
  dhlo_engine_options options;
  dhlo_engine_options_init(&options);
  options.cache_bytes = blocks * toy::kBlock * 8;
  options.max_step_tokens = step_tokens;
  options.max_sequences = std::min<int64_t>(8, step_tokens);
  options.own_thread = own_thread ? 1 : 0;
  return options;
}

inline dhlo_sampling greedy_sampling(int64_t max_tokens) {
  dhlo_sampling sampling;
  dhlo_sampling_init(&sampling);
  sampling.temperature = 0;
  sampling.max_tokens = max_tokens;
  return sampling;
}

// What events have told of a choice.
struct Told {
  std::vector<int32_t> tokens;
  int32_t finish = DHLO_FINISH_NONE;
  std::string error;
  double score = 0;
};
using Answers = std::map<std::pair<uint64_t, int32_t>, Told>;

// Reads events until so many choices have ended.
inline void read(dhlo::Engine& engine, Answers& answers, size_t choices) {
  auto ended = [&] {
    return static_cast<size_t>(std::count_if(answers.begin(), answers.end(),
                                             [](const auto& each) { return each.second.finish != DHLO_FINISH_NONE; }));
  };
  while (ended() < choices) {
    for (const dhlo_event* event : engine.poll(std::chrono::seconds(60))) {
      Told& told = answers[{event->request, event->choice}];
      CHECK(told.finish == DHLO_FINISH_NONE);
      told.tokens.insert(told.tokens.end(), event->tokens, event->tokens + event->num_tokens);
      told.finish = event->finish;
      told.error = event->error;
      told.score = event->score;
    }
  }
}

inline void check_idle(const dhlo::Engine& engine) {
  const dhlo_engine_stats stats = engine.stats();
  CHECK(stats.running == 0 && stats.waiting == 0 && stats.blocks_used == 0);
}
