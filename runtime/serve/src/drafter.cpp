// A small model that drafts what a large one may say.
#include "drafter.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
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
      max_step_tokens_(options.max_step_tokens),
      max_branches_(step_.branches() && target.branches() ? options.max_branches : 1) {
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

void Drafter::draft(std::vector<DraftJob>& jobs, const DraftPrices& prices) {
  for (DraftJob& job : jobs) {
    job.growth.start(job.most);
    if (job.most <= kMostTree) job.width = branches(job.choice->request->rules);
  }
  see(jobs);
  while (!rows_.empty()) {
    const int64_t begin = now_ns(), tokens = step_.tokens();
    if (!run()) break;
    take();
    if (warm()) cost_.learn(tokens, now_ns() - begin);
    step_.clear();
    int64_t budget = max_step_tokens_;
    rows_.erase(std::remove_if(rows_.begin(), rows_.end(), [](const Row& row) { return row.row < 0; }), rows_.end());
    for (Row& row : rows_) {
      DraftGrowth& growth = row.job->growth;
      row.first = static_cast<int64_t>(growth.computed().size());
      const int64_t more = pays(*row.job, prices) ? growth.expand(std::min(row.job->width, budget)) : 0;
      row.row = -1;
      if (more == 0) continue;
      ++row.job->steps;
      const Choice& choice = *row.job->choice;
      row.row = step_.add(*choice.draft.sequence, choice.size(), {}, growth.computed(), row.first, more);
      budget -= more;
    }
    rows_.erase(std::remove_if(rows_.begin(), rows_.end(), [](const Row& row) { return row.row < 0; }), rows_.end());
  }
  for (DraftJob& job : jobs) {
    if (job.width > 1) job.growth.choose([&](int64_t drafts) { return prices.verify(drafts); });
    job.growth.write(job.drafts);
  }
}

// Whether another step of a tree is worth its time: what it may bring are drafts behind the likeliest that has none.
bool Drafter::pays(DraftJob& job, const DraftPrices& prices) const {
  if (job.width == 1) return true;
  const auto made = static_cast<int64_t>(job.growth.size());
  const double step = prices.times * cost(prices.decoding, 1, prices.step) * static_cast<double>(prices.decoding);
  const double now = 1 + prices.verify(made) + static_cast<double>(job.steps) * step;
  const double more = step + prices.verify(made + 1) - prices.verify(made);
  return job.growth.next() * odds_.of_first() * now > more * job.growth.tokens();
}

// Adds what it hasn't seen of each, and makes room for what is drafted.
void Drafter::see(std::vector<DraftJob>& jobs) {
  step_.clear();
  rows_.clear();
  int64_t budget = max_step_tokens_;
  const Request* begins = nullptr;
  for (DraftJob& job : jobs) {
    const Choice& choice = *job.choice;
    DraftState& state = job.choice->draft;
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
    const int64_t most = job.width > 1 ? job.most : job.most - 1;  // that are computed
    if (!cache_->reserve(*state.sequence, all ? end + most : end)) {
      state.drop();
      continue;
    }
    const Tokens unseen{choice.tokens.data() + state.computed, static_cast<size_t>(end - state.computed)};
    const int64_t row = step_.add(*state.sequence, state.computed, unseen, {}, 0, all ? 1 : 0);
    rows_.push_back({&job, end, all ? row : -1, -1});
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
    row.job->choice->draft.drop();
    row.job->choice->draft.failed = true;
    row.job->growth.start(0);
  }
  return false;
}

// What the step brought: tokens are computed, and drafted.
void Drafter::take() {
  for (Row& row : rows_) {
    DraftState& state = row.job->choice->draft;
    if (row.end > state.computed) {
      state.computed = row.end;
      cache_->commit(*state.sequence, {row.job->choice->tokens.data(), static_cast<size_t>(row.end)});
    }
    if (row.row >= 0 && !grow(row)) row.row = -1;
  }
}

// What may follow each of a row's drafts. False: one of them is followed by nothing.
bool Drafter::grow(const Row& row) {
  DraftJob& job = *row.job;
  const int64_t end = std::max<int64_t>(static_cast<int64_t>(job.growth.computed().size()), row.first + 1);
  bool goes_on = true;
  for (int64_t i = row.first; goes_on && i < end; ++i) goes_on = draw(job, step_.logits(row.row + i - row.first), i);
  job.growth.prune();
  return goes_on;
}

bool Drafter::draw(DraftJob& job, const void* logits, int64_t computed) {
  const Choice& choice = *job.choice;
  const Rules& rules = choice.request->rules;
  const TokenCounts* counts = rules.counts() ? &choice.counts : nullptr;
  if (job.width > 1) {
    if (sampler_.weigh(logits, rules, counts, static_cast<int32_t>(job.width)) != Draw::kDone) return false;
    for (size_t rank = 0; rank < sampler_.top().size(); ++rank) {
      const auto& [token, logprob] = sampler_.top()[rank];
      const float probability = std::exp(logprob);
      job.growth.add(computed, {token, rank, probability, odds_.of(rank, probability)});
    }
    return true;
  }
  const int64_t index = choice.made() + job.growth.depth(computed);
  if (sampler_.draw(logits, rules, counts, nullptr, choice.index, index) != Draw::kDone) return false;
  job.growth.add(computed, {sampler_.token(), 0, 1, 1});
  return true;
}

void Drafter::verified(DraftJob& job, int64_t size, Span<const int32_t> path) {
  DraftState& state = job.choice->draft;
  if (job.width > 1) job.growth.learn(path, odds_);
  if (!state.sequence || job.growth.size() == 0) return;
  places_.clear();
  for (const int32_t draft : path) {
    if (job.growth.place(draft) < 0) break;
    places_.push_back(job.growth.place(draft));
  }
  // What isn't right is written over.
  if (!cache_->gather(*state.sequence, size, {places_.data(), places_.size()})) throw std::bad_alloc();
  state.computed = size + static_cast<int64_t>(places_.size());
  cache_->commit(*state.sequence, {job.choice->tokens.data(), static_cast<size_t>(state.computed)});
}

}  // namespace dhlo::serve
