// Requests: what a caller says of them, checked.
#include "request.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "status.hpp"

namespace dhlo::serve {
namespace {

constexpr int64_t kMostLogprobs = 20;
constexpr int64_t kMostStops = 1 << 16, kMostBytes = 1 << 20;  // of a request; bytes of a stop string, and of the salt

// What the salt of keys begins with: that of a request, or the content of its adapter, or of its source, before that.
constexpr char kSalt = 's', kAdapter = 'a', kSource = 'e';

std::string number(double value) {
  std::string text = std::to_string(value);
  while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
    const bool point = text.back() == '.';
    text.pop_back();
    if (point) break;
  }
  return text;
}

void need(bool holds, const char* name, const char* range, const std::string& got) {
  if (!holds) refuse(std::string(name) + " is " + range + ", got " + got);
}

// Written so that NaN is refused.
void need_between(double value, double least, double most, const char* name, const char* range) {
  need(value >= least && value <= most, name, range, number(value));
}

// Before an element is read: a number that can't be one of elements is refused rather than read behind the end.
void need_list(const void* data, int64_t count, int64_t most, const char* name) {
  if (count < 0 || count > most)
    refuse(std::string(name) + ": from 0 to " + std::to_string(most) + " of them are taken, got " +
           std::to_string(count));
  if (data == nullptr && count > 0) refuse(std::string(name) + ": the list is null");
}

void check_tokens(const int32_t* tokens, int64_t count, int64_t vocabulary, const char* name) {
  for (int64_t i = 0; i < count; ++i)
    if (tokens[i] < 0 || tokens[i] >= vocabulary)
      refuse(std::string(name) + ": token " + std::to_string(tokens[i]) + " at " + std::to_string(i) +
             " isn't of the vocabulary of " + std::to_string(vocabulary));
}

Rules read_rules(const dhlo_sampling& how, int64_t vocabulary) {
  need(how.temperature >= 0 && std::isfinite(how.temperature), "temperature", "a number of at least 0",
       number(how.temperature));
  need(how.top_k >= 0, "top_k", "at least 0", std::to_string(how.top_k));
  need(how.top_p > 0 && how.top_p <= 1, "top_p", "above 0 and at most 1", number(how.top_p));
  need_between(how.min_p, 0, 1, "min_p", "from 0 to 1");
  need_between(how.presence_penalty, -2, 2, "presence_penalty", "from -2 to 2");
  need_between(how.frequency_penalty, -2, 2, "frequency_penalty", "from -2 to 2");
  need(how.repetition_penalty > 0 && std::isfinite(how.repetition_penalty), "repetition_penalty", "above 0",
       number(how.repetition_penalty));
  need(how.logprobs >= -1 && how.logprobs <= kMostLogprobs, "logprobs", "from 0 to 20, or -1 for none",
       std::to_string(how.logprobs));
  Rules rules;
  rules.temperature = how.temperature;
  rules.top_k = how.top_k;
  rules.top_p = how.top_p;
  rules.min_p = how.min_p;
  rules.presence = how.presence_penalty;
  rules.frequency = how.frequency_penalty;
  rules.repetition = how.repetition_penalty;
  rules.logprobs = how.logprobs;
  need_list(how.bias_tokens, how.num_bias, vocabulary, "logit_bias");
  need_list(how.bias, how.num_bias, vocabulary, "logit_bias");
  check_tokens(how.bias_tokens, how.num_bias, vocabulary, "logit_bias");
  for (int64_t i = 0; i < how.num_bias; ++i) {
    const float bias = how.bias[i];
    need(bias < std::numeric_limits<float>::infinity(), "logit_bias", "a number, or -infinity", number(bias));
    rules.bias.emplace_back(how.bias_tokens[i], bias);
  }
  if (how.has_seed != 0) {
    rules.seed = how.seed;
  } else {
    std::random_device system;
    rules.seed = uint64_t{system()} << 32 | system();
  }
  return rules;
}

std::vector<StopString> read_stops(const dhlo_sampling& how, const Vocabulary& vocabulary) {
  need_list(how.stops, how.num_stops, kMostStops, "stop");
  if (how.num_stops > 0 && vocabulary.empty())
    refuse("stop strings need the bytes of the vocabulary, which the engine wasn't given");
  std::vector<StopString> stops;
  for (int64_t i = 0; i < how.num_stops; ++i) {
    if (how.stops[i] == nullptr) refuse("stop: string " + std::to_string(i) + " is null");
    if (how.stop_bytes != nullptr && (how.stop_bytes[i] < 0 || how.stop_bytes[i] > kMostBytes))
      refuse("stop: a string has from 1 to " + std::to_string(kMostBytes) + " bytes, got " +
             std::to_string(how.stop_bytes[i]));
    std::string text = how.stop_bytes != nullptr ? std::string(how.stops[i], static_cast<size_t>(how.stop_bytes[i]))
                                                 : std::string(how.stops[i]);
    if (text.empty()) refuse("stop: a stop string isn't empty");
    stops.emplace_back(std::move(text));
  }
  return stops;
}

// Throws for what says how tokens are drawn, or can't be said of texts that part again and again.
void need_beams(const dhlo_sampling& how, const Limits& limits) {
  auto without = [](bool holds, const char* name) {
    if (!holds) refuse(std::string(name) + ": doesn't go with beam search (beam_width): leave it out");
  };
  if (limits.evicts) refuse("beam_width: doesn't go with an engine that leaves blocks out of sequences (evict_to)");
  need(how.beam_width <= limits.max_sequences, "beam_width", "at most max_sequences", std::to_string(how.beam_width));
  need(how.n <= how.beam_width, "n", "at most beam_width", std::to_string(how.n));
  need_between(how.length_penalty, -10, 10, "length_penalty", "from -10 to 10");
  need(how.early_stopping >= DHLO_EARLY_STOPPING_SCORES && how.early_stopping <= DHLO_EARLY_STOPPING_NEVER,
       "early_stopping", "a dhlo_early_stopping", std::to_string(how.early_stopping));
  without(how.temperature == 0 || how.temperature == 1, "temperature");
  without(how.top_k == 0, "top_k");
  without(how.top_p == 1, "top_p");
  without(how.min_p == 0, "min_p");
  without(how.num_stops == 0, "stop");
  without(how.constrained == 0, "constrained");
}

}  // namespace

Request::Request(const int32_t* prompt, int64_t num_tokens, const dhlo_sampling& how, const Limits& limits,
                 const Vocabulary& vocabulary, std::vector<int32_t> eos_tokens)
    : user(how.user),
      priority(how.priority),
      prompt_tokens(num_tokens),
      rules(read_rules(how, limits.vocabulary)),
      speculate(how.speculate != 0),
      constrained(how.constrained != 0),
      stops(read_stops(how, vocabulary)) {
  if (num_tokens < 1) refuse("prompt: there must be a token");
  if (num_tokens >= limits.max_positions)
    refuse("prompt: " + std::to_string(num_tokens) + " tokens leave no room for another: the engine has " +
           std::to_string(limits.max_positions) + " positions for a sequence");
  need_list(prompt, num_tokens, limits.max_positions, "prompt");
  check_tokens(prompt, num_tokens, limits.vocabulary, "prompt");
  need(how.max_tokens >= 1, "max_tokens", "at least 1", std::to_string(how.max_tokens));
  max_size = num_tokens + std::min(how.max_tokens, limits.max_positions - num_tokens);
  need(how.n >= 1 && how.n <= limits.max_sequences, "n", "at least 1 and at most max_sequences", std::to_string(how.n));
  if (constrained && !limits.constrains) refuse("constrained: the engine has no hook for constraints");
  need(how.timeout_ns >= 0, "timeout", "at least 0", std::to_string(how.timeout_ns));
  if (how.timeout_ns > 0) {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    if (__builtin_add_overflow(now, how.timeout_ns, &deadline_ns)) deadline_ns = 0;
  }
  need(how.salt_bytes >= 0 && how.salt_bytes <= kMostBytes, "salt", "of at most 2^20 bytes",
       std::to_string(how.salt_bytes));
  if (how.salt != nullptr && how.salt_bytes > 0)
    salt.assign(1, kSalt).append(how.salt, static_cast<size_t>(how.salt_bytes));
  need_list(how.stop_tokens, how.num_stop_tokens, limits.vocabulary, "stop_tokens");
  check_tokens(how.stop_tokens, how.num_stop_tokens, limits.vocabulary, "stop_tokens");
  if (how.ignore_eos == 0) ends = std::move(eos_tokens);
  ends.insert(ends.end(), how.stop_tokens, how.stop_tokens + how.num_stop_tokens);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());

  live = how.n;
  int32_t sequences = how.n;
  need(how.beam_width >= 0, "beam_width", "at least 0", std::to_string(how.beam_width));
  if (how.beam_width > 0) {
    need_beams(how, limits);
    sequences = how.beam_width;
    if (const int64_t blocks = blocks_of(sequences, max_size, limits.block_slots); blocks > limits.blocks)
      refuse("beam_width: " + std::to_string(sequences) + " beams of up to " + std::to_string(max_size) +
             " tokens need " + std::to_string(blocks) + " blocks, and the pools have " + std::to_string(limits.blocks) +
             ": give fewer beams or max_tokens, or more cache_bytes");
    search = std::make_unique<BeamSearch>(sequences, how.length_penalty, how.early_stopping, max_size - num_tokens);
    speculate = false;
  } else if (how.length_penalty != 1 || how.early_stopping != DHLO_EARLY_STOPPING_SCORES) {
    refuse(std::string(how.length_penalty != 1 ? "length_penalty" : "early_stopping") + ": goes with beam_width");
  }
  choices = std::vector<Choice>(static_cast<size_t>(sequences));
  for (int32_t i = 0; i < sequences; ++i) {
    Choice& choice = choices[static_cast<size_t>(i)];
    choice.request = this;
    choice.index = i;
    choice.tokens.reserve(static_cast<size_t>(std::min<int64_t>(max_size, num_tokens + 4096)));
    choice.tokens.assign(prompt, prompt + num_tokens);
    choice.given = num_tokens;
    if (rules.counts())
      for (int64_t t = 0; t < num_tokens; ++t) choice.counts.add(prompt[t], false);
  }
}

int64_t Request::blocks_of(int64_t beams, int64_t tokens, int64_t block_slots) const {
  const int64_t shared = prompt_tokens / block_slots, own = (tokens + block_slots - 1) / block_slots - shared;
  int64_t all = 0;
  if (__builtin_mul_overflow(own, beams, &all) || __builtin_add_overflow(all, shared, &all)) return INT64_MAX;
  return all;
}

void Request::choose(Adapters::Hold chosen) {
  const Digest& content = chosen.content();
  salt.insert(0, std::string(1, kAdapter).append(reinterpret_cast<const char*>(content.data()), content.size()));
  adapter = std::move(chosen);
}

void Request::attend_to(std::unique_ptr<Source> given) {
  const Digest& content = given->content;
  salt.insert(0, std::string(1, kSource).append(reinterpret_cast<const char*>(content.data()), content.size()));
  source = std::move(given);
}

}  // namespace dhlo::serve
