// Requests, and the choices that they are made of.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapters.hpp"
#include "beam_search.hpp"
#include "cache.hpp"
#include "counts.hpp"
#include "dhlo/serve.h"
#include "draft_length.hpp"
#include "lookup.hpp"
#include "sampler.hpp"
#include "sources.hpp"
#include "stops.hpp"

namespace dhlo::serve {

struct Request;

// What a draft model knows of a choice.
struct DraftState {
  std::optional<Sequence> sequence;  // of its own cache
  int64_t computed = 0;              // tokens of the choice that are in it
  bool failed = false;               // it can't compute this choice
  DraftLength length{0.95};          // unlike what a text repeats, what it knows is alike throughout

  void drop() {
    sequence.reset();
    computed = 0;
  }
};

// A sequence of tokens in the making. Of a request that hasn't begun only the first choice has anything to do: it
// computes the prompt, whose blocks the others then share. In beam search they are its beams, and what is told of them
// is what it has found in the end.
struct Choice {
  Request* request = nullptr;
  int32_t index = 0;
  std::vector<int32_t> tokens;            // those of the prompt first
  std::optional<Sequence> sequence;       // while it runs
  SwappedSequence swapped;                // while it waits, if it was swapped out
  int64_t fetch = 0;                      // number of the fetch of what the folder has of its tokens, while it waits
  int64_t fetch_until_ns = 0;             // how long it waits for that; 0: it wasn't begun
  int64_t computed = 0;                   // tokens whose keys and values are in the sequence's blocks
  int64_t given = 0;                      // tokens that events have told of, those of the prompt included
  dhlo_finish finish = DHLO_FINISH_NONE;  // and why, as soon as it is known
  int32_t stop = -1;
  const char* error = "";
  bool ended = false;      // its last event is made
  bool scheduled = false;  // it is in the step
  bool passed = false;     // there is no room for it in the step
  TokenCounts counts;      // if penalties are asked for
  StopState stops;         // if there are stop strings
  PromptLookup lookup;     // if drafts are made by it
  std::array<DraftLength, PromptLookup::kKinds> lookup_lengths;
  DraftState draft;
  // Log-probabilities of tokens that aren't given yet.
  std::vector<float> logprobs, top_logprobs;
  std::vector<int32_t> top_tokens;
  int32_t cell = -1;  // where its states are, while it runs, if the step keeps such
  double score = 0;   // of what beam search has found

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t made() const;
  // Tokens that are computed before it makes more, or before the other beams do.
  int64_t goal() const;
  // All but one token are computed: each step makes one or more.
  bool decodes() const { return size() - computed == 1; }
};

struct Limits {
  int64_t vocabulary = 0, max_positions = 0, max_sequences = 0, blocks = 0, block_slots = 1;
  bool constrains = false;  // the host has a hook for it
  bool evicts = false;      // sequences go on without blocks
};

struct Request {
  // Copies what is given. Throws Error for what is out of range.
  Request(const int32_t* prompt, int64_t num_tokens, const dhlo_sampling& how, const Limits& limits,
          const Vocabulary& vocabulary, std::vector<int32_t> eos_tokens);
  // Keys and values are its adapter's, too: what it begins with is shared with requests of the same content.
  void choose(Adapters::Hold chosen);
  // The same of what it is about.
  void attend_to(std::unique_ptr<Source> given);
  // Blocks of so many beams of so many tokens, which share those that the prompt fills.
  int64_t blocks_of(int64_t beams, int64_t tokens, int64_t block_slots) const;

  uint64_t id = 0;
  void* user = nullptr;
  int32_t priority = 0;
  int64_t deadline_ns = 0;  // of the steady clock; 0: none
  int64_t prompt_tokens = 0;
  int64_t max_size = 0;  // of a choice, with the prompt
  Rules rules;
  bool speculate = true, constrained = false;
  std::string salt;  // what keys of blocks are salted with
  Adapters::Hold adapter;
  std::unique_ptr<Source> source;  // null: none
  int32_t place = -1;              // of that, while a choice runs
  bool encoded = false;            // it is there
  std::vector<int32_t> ends;       // tokens that end a choice, ascending
  std::vector<StopString> stops;
  std::vector<Choice> choices;  // never changes its size

  bool begun = false;                  // the first choice has had blocks
  bool forked = false;                 // all choices run by themselves
  std::unique_ptr<BeamSearch> search;  // null: none
  int64_t cached_tokens = 0;
  int64_t live = 0;          // choices that haven't ended, those that are told of
  int64_t came = 0;          // with so many tokens in all steps before
  int64_t known_tokens = 0;  // of the prompt, to the cache, when it came
  std::atomic<bool> cancelled{false};
};

inline int64_t Choice::made() const { return size() - request->prompt_tokens; }
inline int64_t Choice::goal() const {
  if (request->search == nullptr) return size();
  return request->forked ? size() - 1 : request->prompt_tokens;
}

// Who keeps its blocks.
struct Earlier {
  bool operator()(const Choice* a, const Choice* b) const {
    if (a->request->priority != b->request->priority) return a->request->priority < b->request->priority;
    if (a->request->id != b->request->id) return a->request->id < b->request->id;
    return a->index < b->index;
  }
};

// Whose prompt goes first: by when it came, counted in tokens of steps, and kAgeTokens for each that is left to
// compute. So shorter prompts go before longer ones, and none before one that has waited for kAgeTokens times as many
// tokens as that has left. What a choice that waits has computed is 0: its place never changes.
constexpr int64_t kAgeTokens = 4;
struct Sooner {
  static int64_t rank(const Choice& choice) {
    const Request& request = *choice.request;
    return request.came + kAgeTokens * (request.prompt_tokens - std::max(choice.computed, request.known_tokens));
  }
  bool operator()(const Choice* a, const Choice* b) const {
    if (a->request->priority != b->request->priority) return a->request->priority < b->request->priority;
    const int64_t first = rank(*a), second = rank(*b);
    return first != second ? first < second : Earlier()(a, b);
  }
};

}  // namespace dhlo::serve
