// Beam search in the engine beside one that keeps nothing: in any company, under preemption, without memory, ended early.
#include <array>
#include <cmath>
#include <thread>

#include "beam_search.hpp"
#include "dhlo/serve.hpp"
#include "engine_checks.hpp"
#include "sampler.hpp"

namespace {

const std::array<int32_t, 2> kEnds = {3, 20};

struct Text {
  double sum = 0, score = 0;
  std::vector<int32_t> tokens;
};

bool better(const Text& a, const Text& b) { return a.score > b.score; }

std::vector<double> logprobs_behind(const std::vector<int32_t>& tokens) {
  uint64_t hash = 1;
  for (const int32_t token : tokens) hash = toy::mixed(hash, static_cast<uint64_t>(token));
  std::vector<double> x;
  double total = 0;
  for (int32_t v = 0; v < toy::kVocabulary; ++v) {
    x.push_back(v >= toy::kNan ? -1 : toy::logit(hash, v));
    total += std::exp(x.back());
  }
  for (double& each : x) each -= std::log(total);
  return x;
}

// transformers' rules, all continuations sorted at each token.
std::vector<Text> searched(const std::vector<int32_t>& prompt, const dhlo_sampling& how) {
  const auto width = static_cast<size_t>(how.beam_width);
  std::vector<Text> beams(1), found;
  auto score = [&](double sum, int64_t made) { return sum / std::pow(static_cast<double>(made), how.length_penalty); };
  for (int64_t made = 1;; ++made) {
    std::vector<Text> all, on;
    for (const Text& beam : beams) {
      std::vector<int32_t> tokens = prompt;
      tokens.insert(tokens.end(), beam.tokens.begin(), beam.tokens.end());
      const std::vector<double> logprobs = logprobs_behind(tokens);
      for (int32_t v = 0; v < toy::kVocabulary; ++v) {
        Text text{beam.sum + logprobs[static_cast<size_t>(v)], 0, beam.tokens};
        text.score = text.sum;
        text.tokens.push_back(v);
        all.push_back(text);
      }
    }
    std::sort(all.begin(), all.end(), better);
    for (size_t i = 0; i < all.size(); ++i) {
      Text text = all[i];
      const bool ends = std::count(kEnds.begin(), kEnds.end(), text.tokens.back()) > 0;
      if (!ends && on.size() < width) on.push_back(text);
      text.score = score(text.sum, made);
      if (i < width && (ends || made == how.max_tokens)) found.push_back(text);
    }
    std::stable_sort(found.begin(), found.end(), better);
    found.resize(std::min(found.size(), width));
    beams = on;
    const bool full = found.size() == width;
    const bool longest = how.early_stopping == DHLO_EARLY_STOPPING_NEVER && how.length_penalty > 0;
    const bool hopeless = full && score(beams[0].sum, longest ? how.max_tokens : made) <= found.back().score;
    if (made == how.max_tokens || hopeless || (full && how.early_stopping == DHLO_EARLY_STOPPING_FULL)) break;
  }
  found.resize(static_cast<size_t>(how.n));
  return found;
}

dhlo_sampling beam_sampling(int32_t width, int32_t n, int64_t max_tokens) {
  dhlo_sampling sampling;
  dhlo_sampling_init(&sampling);
  sampling.beam_width = width;
  sampling.n = n;
  sampling.max_tokens = max_tokens;
  return sampling;
}

dhlo_engine_options with_ends(dhlo_engine_options options) {
  options.eos_tokens = kEnds.data();
  options.num_eos_tokens = kEnds.size();
  return options;
}

int64_t preemptions = 0;

// Searches of all kinds among other requests.
void test_mixes(int64_t blocks, int64_t step_tokens, bool prefix, bool swap, uint64_t seed) {
  Random random{seed};
  dhlo_engine_options options = with_ends(options_of(blocks, step_tokens, false));
  options.prompt_lookup = std::min<int64_t>(4, step_tokens);
  options.prefix_cache = prefix ? 1 : 0;
  options.preemption = swap ? DHLO_PREEMPTION_SWAP : DHLO_PREEMPTION_RECOMPUTE;
  dhlo::Engine engine(toy::model(), &options);
  const std::vector<int32_t> beginning = prompt_of(random, 40);
  std::map<uint64_t, std::pair<std::vector<int32_t>, dhlo_sampling>> asked;
  size_t choices = 0;
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> prompt = random.below(2) != 0 ? beginning : std::vector<int32_t>();
    for (const int32_t token : prompt_of(random, 1 + random.below(30))) prompt.push_back(token);
    dhlo_sampling sampling = greedy_sampling(1 + random.below(30));
    sampling.ignore_eos = 1;
    if (random.below(2) != 0) {
      const auto width = static_cast<int32_t>(1 + random.below(std::min<int64_t>(step_tokens, 5)));
      sampling = beam_sampling(width, static_cast<int32_t>(1 + random.below(width)), 1 + random.below(40));
      sampling.early_stopping = static_cast<int32_t>(random.below(3));
      sampling.length_penalty = 0.5 * static_cast<double>(random.below(5)) - 0.5;
    }
    sampling.priority = static_cast<int32_t>(random.below(20) - i);  // later ones push out earlier ones
    asked[engine.submit(prompt, &sampling)] = {prompt, sampling};
    choices += static_cast<size_t>(sampling.n);
    for (int64_t steps = random.below(6); steps > 0; --steps) engine.step();
  }
  while (engine.step()) continue;
  Answers answers;
  read(engine, answers, choices);
  for (const auto& [id, request] : asked) {
    const auto& [prompt, sampling] = request;
    if (sampling.beam_width == 0) {
      CHECK((answers[{id, 0}].tokens == toy::greedy(prompt, sampling.max_tokens)));
      continue;
    }
    const std::vector<Text> want = searched(prompt, sampling);
    for (int32_t i = 0; i < sampling.n; ++i) {
      const Told& told = answers[{id, i}];
      const Text& text = want[static_cast<size_t>(i)];
      const bool stops = std::count(kEnds.begin(), kEnds.end(), text.tokens.back()) > 0;
      CHECK(told.tokens == text.tokens && std::fabs(told.score - text.score) < 1e-4);
      CHECK(told.finish == (stops ? DHLO_FINISH_STOP : DHLO_FINISH_LENGTH));
    }
  }
  check_idle(engine);
  preemptions += engine.stats().preemptions;
}

// What there is at a deadline or when it is cancelled is given, in order; a prompt that isn't computed gives nothing.
void test_ended_early() {
  for (const int64_t tokens : {20, 200}) {
    dhlo_engine_options options = options_of(60, 64, false);
    dhlo::Engine engine(toy::model(), &options);
    dhlo_sampling sampling = beam_sampling(4, 3, 30);
    Random random{2};
    const uint64_t cancelled = engine.submit(prompt_of(random, tokens), &sampling);
    sampling.timeout_ns = 50000000;
    const uint64_t late = engine.submit(prompt_of(random, tokens), &sampling);
    for (int i = 0; i < 3; ++i) engine.step();
    engine.cancel(cancelled);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    while (engine.step()) continue;
    Answers answers;
    read(engine, answers, 6);
    for (int32_t i = 0; i < 3; ++i) {
      for (const uint64_t id : {cancelled, late}) {
        const Told& told = answers[{id, i}];
        CHECK(told.finish == (id == cancelled ? DHLO_FINISH_CANCELLED : DHLO_FINISH_DEADLINE));
        CHECK(told.tokens.empty() == (tokens == 200) && told.score <= (i > 0 ? answers[{id, i - 1}].score : 0));
      }
    }
    check_idle(engine);
  }
}

void test_failures() {
  dhlo_engine_options options = options_of(60, 64, false);
  dhlo::Engine engine(toy::model(), &options);
  dhlo_sampling sampling = beam_sampling(3, 2, 5);
  engine.submit({1, toy::kFails, 3}, &sampling);
  engine.submit({1, toy::kNan, 3}, &sampling);
  // A single token may come: one text is found.
  std::vector<int32_t> tokens;
  for (int32_t v = 0; v < toy::kVocabulary; ++v)
    if (v != 9) tokens.push_back(v);
  const std::vector<float> bias(tokens.size(), -INFINITY);
  sampling.bias_tokens = tokens.data();
  sampling.bias = bias.data();
  sampling.num_bias = static_cast<int64_t>(tokens.size());
  const uint64_t one = engine.submit({1, 2, 4}, &sampling);
  while (engine.step()) continue;
  Answers answers;
  read(engine, answers, 6);
  for (const auto& [key, told] : answers) {
    const bool found = key.first == one && key.second == 0;
    CHECK(told.finish == (found ? DHLO_FINISH_LENGTH : DHLO_FINISH_ERROR) && told.error.empty() == found);
    CHECK(told.tokens == (found ? std::vector<int32_t>(5, 9) : std::vector<int32_t>()));
  }
  check_idle(engine);
}

void test_what_is_refused() {
  dhlo_engine_options options = options_of(20, 64, false);
  options.constrain = [](void*, uint64_t, void*, int32_t, const int32_t*, int64_t, uint32_t*, int64_t) -> int32_t {
    return 0;
  };
  dhlo::Engine engine(toy::model(), &options);
  auto refused = [&](auto change, const char* name) {
    dhlo_sampling sampling = beam_sampling(4, 2, 20);
    change(sampling);
    const int32_t prompt[] = {1, 2};
    uint64_t id = 0;
    CHECK(dhlo_engine_submit(engine.get(), prompt, 2, &sampling, &id) == DHLO_INVALID_ARGUMENT);
    CHECK(std::string(dhlo_serve_last_error()).find(name) != std::string::npos);
  };
  using Sampling = dhlo_sampling;
  for (const int32_t wrong : {-1, 9, INT32_MIN, INT32_MAX})
    refused([&](Sampling& s) { s.beam_width = wrong; }, "beam_width");
  refused([](Sampling& s) { s.n = 5; }, "n is at most beam_width");
  refused([](Sampling& s) { s.temperature = 0.5; }, "temperature");
  refused([](Sampling& s) { s.top_k = 3; }, "top_k");
  refused([](Sampling& s) { s.top_p = 0.5; }, "top_p");
  refused([](Sampling& s) { s.min_p = 0.5; }, "min_p");
  refused([](Sampling& s) { s.constrained = 1; }, "constrained");
  refused([](Sampling& s) { s.max_tokens = INT64_MAX; }, "give fewer beams or max_tokens");
  for (const double wrong : {-11.0, 1e300, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    refused([&](Sampling& s) { s.length_penalty = wrong; }, "length_penalty");
  for (const int32_t wrong : {-1, 3}) refused([&](Sampling& s) { s.early_stopping = wrong; }, "early_stopping");
  refused([](Sampling& s) { s.beam_width = 0, s.length_penalty = 2; }, "length_penalty: goes with beam_width");
  refused([](Sampling& s) { s.beam_width = 0, s.early_stopping = 1; }, "early_stopping: goes with beam_width");
}

#if COUNTS_ALLOCATIONS
// Wherever memory is short in a step: each choice ends once, and the engine serves others then.
void test_short_memory() {
  for (int64_t left = 0; left < 80; ++left) {
    dhlo_engine_options options = with_ends(options_of(14, 64, false));
    dhlo::Engine engine(toy::model(), &options);
    dhlo_sampling sampling = beam_sampling(3, 2, 12);
    sampling.logprobs = 2;
    Random random{static_cast<uint64_t>(left)};
    for (int i = 0; i < 3; ++i) engine.submit(prompt_of(random, 30), &sampling);
    allocations_left = left;
    for (int i = 0; i < 20; ++i) engine.step();
    allocations_left = -1;
    const std::vector<int32_t> prompt = prompt_of(random, 20);
    const uint64_t id = engine.submit(prompt, &sampling);
    while (engine.step()) continue;
    Answers answers;
    read(engine, answers, 8);
    const std::vector<Text> want = searched(prompt, sampling);
    for (int32_t i = 0; i < 2; ++i) CHECK((answers[{id, i}].tokens == want[static_cast<size_t>(i)].tokens));
    for (const auto& [key, told] : answers) CHECK(told.finish <= DHLO_FINISH_LENGTH || told.error == "out of memory");
    check_idle(engine);
  }
}
#endif

// Beams go on without allocations; what the host's part of a step takes is printed.
void test_steady_state() {
  dhlo_engine_options options = options_of(400, 64, false);
  dhlo::Engine engine(toy::model(), &options);
  const dhlo_sampling sampling = beam_sampling(8, 1, 500);
  Random random{3};
  engine.submit(prompt_of(random, 500), &sampling);
  for (int i = 0; i < 100; ++i) engine.step();
  const dhlo_engine_stats before = engine.stats();
  const int64_t allocated = allocations;
  const int64_t steps = 300;
  for (int64_t i = 0; i < steps; ++i) engine.step();
  const dhlo_engine_stats after = engine.stats();
  std::printf("8 beams of 600 to 900 tokens: %.1f us a step, %.1f of them scheduling and cache; allocations %lld\n",
              static_cast<double>(after.host_ns - before.host_ns) * 1e-3 / static_cast<double>(steps),
              static_cast<double>(after.schedule_ns - before.schedule_ns) * 1e-3 / static_cast<double>(steps),
              static_cast<long long>(allocations - allocated));
  CHECK(!COUNTS_ALLOCATIONS || allocations - allocated < 8 * 16);  // tables and tokens grow by powers of two
}

// What a token of 8 beams takes beside the step.
void time_choosing() {
  const int64_t beams = 8, vocabulary = 32000;
  std::vector<float> x(static_cast<size_t>(beams * vocabulary));
  Random random{9};
  for (float& each : x) each = static_cast<float>(random.below(1 << 20)) * 1e-5f;
  dhlo::serve::Sampler sampler(vocabulary, DHLO_F32);
  dhlo::serve::BeamSearch search(beams, 1, DHLO_EARLY_STOPPING_SCORES, 1 << 20);
  const std::vector<int32_t> ends = {2};
  double best = 1e9;
  for (int64_t made = 1; made < 50; ++made) {
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t beam = 0; beam < beams; ++beam) {
      if (!search.beams()[static_cast<size_t>(beam)].live) continue;
      search.take_row(beam, beam);
      sampler.weigh(x.data() + beam * vocabulary, {}, nullptr, 0);
      search.offer(beam, sampler, ends);
    }
    search.choose(made);
    search.go_on();
    if (made == 1) continue;
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("choosing for 8 beams of 32,000 tokens: %.1f us\n", best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "time") {
    time_choosing();
    test_steady_state();
    return failures != 0;
  }
  for (uint64_t seed = 0; seed < 3; ++seed) {
    test_mixes(400, 64, true, false, seed);
    test_mixes(24, 16, true, false, seed);
    test_mixes(24, 7, false, false, seed);
    test_mixes(24, 64, true, true, seed);
    test_mixes(24, 1, true, false, seed);
  }
  CHECK(preemptions > 200);
  test_ended_early();
  test_failures();
  test_what_is_refused();
#if COUNTS_ALLOCATIONS
  test_short_memory();
#endif
  test_steady_state();
  if (failures == 0) std::printf("all passed\n");
  return failures != 0;
}
