// A small model that drafts what a large one may say.
#include "drafter.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "status.hpp"

namespace dhlo::serve {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

int64_t bounded(int64_t most) { return most > 0 ? most : INT64_MAX; }  // 0: any number

}  // namespace

Drafter::Drafter(dhlo_model* model, const Step& target, const DrafterOptions& options)
    : step_(model),
      sampler_(step_.vocabulary(), step_.dtype()),
      max_positions_(std::min(bounded(options.max_positions), bounded(step_.max_positions()))),
      max_step_tokens_(options.max_step_tokens) {
  auto same = [](int64_t drafts, int64_t targets, const char* what) {
    if (drafts != targets)
      refuse("draft_model: its " + std::string(what) + " must be the model's, " + std::to_string(targets) +
             ", but is " + std::to_string(drafts));
  };
  same(step_.vocabulary(), target.vocabulary(), "vocabulary");
  same(step_.block_slots(), target.block_slots(), "blocks' number of tokens");
  if (step_.adapters() != nullptr) refuse("draft_model: it was compiled with room for adapters, which it never has");
  if (step_.has_states()) refuse("draft_model: it keeps states of sequences, which can't go back behind drafts");
  if (step_.is_cross()) refuse("draft_model: it has cross attention, whose encoder the engine doesn't run");
  CacheOptions how = step_.cache_options();
  how.prefix = options.prefix;
  how.num_blocks = options.target_blocks;
  if (options.cache_bytes > 0)
    how.num_blocks = std::min(options.cache_bytes / step_.block_bytes(), INT32_MAX / step_.block_slots());
  if (how.num_blocks < 1)
    refuse("draft_cache_bytes are those of a block at least, " + std::to_string(step_.block_bytes()) + ", got " +
           std::to_string(options.cache_bytes));
  max_positions_ = std::min(max_positions_, how.num_blocks * how.block_slots);
  auto made = Cache::create(how);
  if (!made.ok()) throw Error(made.status(), "draft_model: " + made.text());
  cache_ = std::move(made.value());
  groups_ = static_cast<int64_t>(how.windows.size());
  populator_.start(step_.pool_memory(*cache_), groups_, how.num_blocks);
  step_.attach(*cache_, max_step_tokens_, options.max_sequences);
  rows_.reserve(static_cast<size_t>(options.max_sequences));
}

void Drafter::draft(std::vector<Draft>& drafts) {
  see(drafts);
  while (!rows_.empty()) {
    const int64_t begin = now_ns(), tokens = step_.tokens();
    if (!run()) return;
    take();
    cost_.learn(tokens, now_ns() - begin);
    step_.clear();
    // Who wants more goes on with what was drawn.
    rows_.erase(std::remove_if(rows_.begin(), rows_.end(),
                               [](const Row& row) { return row.row < 0 || row.draft->made == row.draft->most; }),
                rows_.end());
    for (Row& row : rows_) {
      const Draft& draft = *row.draft;
      const Tokens last{draft.tokens + draft.made - 1, 1};
      row.row = step_.add(*draft.choice->draft.sequence, draft.choice->size() + draft.made - 1, last, {}, 1);
    }
  }
}

// Adds what it hasn't seen of each, and makes room for what is drafted.
void Drafter::see(std::vector<Draft>& drafts) {
  step_.clear();
  rows_.clear();
  int64_t budget = max_step_tokens_;
  const Request* begins = nullptr;
  for (Draft& draft : drafts) {
    const Choice& choice = *draft.choice;
    DraftState& state = draft.choice->draft;
    // The others of a request share the blocks of the one that begins.
    if (!state.sequence && choice.request == begins) continue;
    if (!state.sequence) {
      Sequence sequence = cache_->begin({choice.tokens.data(), choice.tokens.size()}, choice.request->salt);
      if (!sequence) continue;
      state.computed = sequence.cached();
      state.sequence.emplace(std::move(sequence));
      begins = choice.request;
    }
    const int64_t end = std::min(choice.size(), state.computed + budget);
    if (end == state.computed) continue;
    const bool all = end == choice.size();
    if (!cache_->reserve(*state.sequence, all ? end + draft.most - 1 : end)) {
      state.drop();
      continue;
    }
    const Tokens unseen{choice.tokens.data() + state.computed, static_cast<size_t>(end - state.computed)};
    const int64_t row = step_.add(*state.sequence, state.computed, unseen, {}, all ? 1 : 0);
    rows_.push_back({&draft, end, all ? row : -1});
    budget -= end - state.computed;
    if (!all) begins = choice.request;
  }
  for (int64_t group = 0; group < groups_; ++group) populator_.reached(group, cache_->opened(group));
}

// A step. If it fails, its sequences are drafted for no more: the target computes them as ever.
bool Drafter::run() {
  if (step_.run() == DHLO_OK) {
    ++steps_;
    return true;
  }
  ++failures_;
  for (const Row& row : rows_) {
    row.draft->choice->draft.drop();
    row.draft->choice->draft.failed = true;
  }
  return false;
}

// What the step brought: tokens are computed, and drawn.
void Drafter::take() {
  for (Row& row : rows_) {
    DraftState& state = row.draft->choice->draft;
    if (row.end > state.computed) {
      state.computed = row.end;
      cache_->commit(*state.sequence, {row.draft->choice->tokens.data(), static_cast<size_t>(row.end)});
    }
    if (row.row >= 0 && !draw(row)) row.row = -1;
  }
}

bool Drafter::draw(const Row& row) {
  Draft& draft = *row.draft;
  const Choice& choice = *draft.choice;
  const Rules& rules = choice.request->rules;
  const TokenCounts* counts = rules.counts() ? &choice.counts : nullptr;
  const int64_t index = choice.made() + draft.made;
  if (sampler_.draw(step_.logits(row.row), rules, counts, nullptr, choice.index, index) != Draw::kDone) return false;
  draft.tokens[draft.made++] = sampler_.token();
  return true;
}

void Drafter::verified(Choice& choice, int64_t size, int64_t made, int64_t accepted) {
  DraftState& state = choice.draft;
  if (!state.sequence || made == 0) return;
  // The last that was drafted wasn't computed. What isn't right is written over.
  state.computed = size + std::min(accepted, made - 1);
  cache_->commit(*state.sequence, {choice.tokens.data(), static_cast<size_t>(state.computed)});
}

}  // namespace dhlo::serve
