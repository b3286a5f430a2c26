// What becomes of logits: tokens, and the ends of choices.
#include <algorithm>
#include <new>

#include "engine.hpp"
#include "status.hpp"

namespace dhlo::serve {

// Tokens of a choice: one, and one more for each draft that turns out to be what is drawn anyway. So drafts change
// nothing of what a choice says: a draft is right as often as it would have been drawn.
void Engine::take_rows(Item& item) {
  Choice& choice = *item.choice;
  int32_t draft = -1;
  path_.clear();
  while (extend(choice, step_.logits(item.row + draft + 1)) &&
         (draft = follower(item, draft, choice.tokens.back())) >= 0)
    path_.push_back(draft);
  if (!cache_->gather(*choice.sequence, item.end, {path_.data(), path_.size()})) throw std::bad_alloc();
  choice.computed += static_cast<int64_t>(path_.size());
  if (item.drafts > 0) note_drafts(item);
  if (choice.finish == DHLO_FINISH_NONE) give(choice);
}

// The item's draft of a token behind one of its drafts (-1: behind the choice's tokens); -1: there is none.
int32_t Engine::follower(const Item& item, int32_t draft, int32_t token) const {
  const Draft* drafts = drafts_.data() + item.drafts_at;
  for (auto i = draft + 1; i < static_cast<int32_t>(item.drafts); ++i)
    if (drafts[i].parent == draft && drafts[i].token == token) return i;
  return -1;
}

// Those of path_ were right.
void Engine::note_drafts(Item& item) {
  Choice& choice = *item.choice;
  const auto accepted = static_cast<int64_t>(path_.size());
  int64_t depth = 0;
  TreeWalk walk;
  for (int64_t i = 0; i < item.drafts; ++i)
    depth = std::max(depth, walk.next(drafts_[static_cast<size_t>(item.drafts_at + i)]).depth);
  DraftLength& length = item.by_model ? choice.draft.length : choice.lookup_lengths[item.kind];
  DraftRates& rates = item.by_model ? model_rates_ : lookup_rates_[item.kind];
  length.learn(depth, accepted);
  rates.learn(choice.request->rules.greedy(), depth, accepted);
  if (item.by_model) drafter_->verified(*item.job, item.end, {path_.data(), path_.size()});
  item.accepted = accepted;
  ++counts_.drafts;
  counts_.drafted_tokens += item.drafts;
  counts_.accepted_tokens += accepted;
  for (int64_t i = 0; i < std::min<int64_t>(accepted, DHLO_DRAFT_POSITIONS); ++i) ++counts_.accepted_at[i];
}

// What drafts of a step cost that has taken so long, and what they have saved.
void Engine::settle_drafts(int64_t ns, bool prompts) {
  constexpr double kLeast = 0.25, kMost = 4;  // of what is expected; more is something else's
  for (DraftAccount* account : {&lookup_account_, &model_account_}) account->step();
  double expected = 0;
  for (const Item& item : items_) expected += item.cost;
  if (expected <= 0) return;
  const double step_ns = cost_.of(decoding_), more = static_cast<double>(ns) / step_ns - 1;
  for (const Item& item : items_) {
    if (item.by_model && !drafter_->warm()) continue;
    DraftAccount& account = item.by_model ? model_account_ : lookup_account_;
    const double times = prompts || !cost_.known() ? account.times() : std::clamp(more / expected, kLeast, kMost);
    const double gain = static_cast<double>(item.accepted) / static_cast<double>(decoding_);
    if (item.cost > 0) account.settle(item.cost, times, gain, step_ns);
  }
}

// The prompt is computed: from here on the request's choices differ.
void Engine::fork(Request& request, const void* row) {
  request.forked = true;
  const Choice& first = request.choices.front();
  for (size_t i = 1; i < request.choices.size(); ++i) {
    Choice& choice = request.choices[i];
    if (!extend(choice, row)) continue;
    choice.sequence.emplace(cache_->fork(*first.sequence));
    if (!*choice.sequence) throw std::bad_alloc();
    choice.cell = step_.take_cell();
    if (choice.cell >= 0) step_.copy_states(first.cell, choice.cell);
    choice.computed = first.computed;
    insert_running(choice);
    give(choice);
  }
}

// Another token. Whether more are to come.
bool Engine::extend(Choice& choice, const void* row) {
  const Request& request = *choice.request;
  if (draw(choice, row)) {
    const int32_t token = sampler_->token();
    if (request.rules.logprobs >= 0) note_logprobs(choice);
    choice.tokens.push_back(token);
    ++counts_.generated_tokens;
    if (request.rules.counts()) choice.counts.add(token, true);
    if (!request.stops.empty()) choice.stop = choice.stops.take(request.stops, vocabulary_, token);
    if (choice.stop >= 0 || std::binary_search(request.ends.begin(), request.ends.end(), token))
      choice.finish = DHLO_FINISH_STOP;
    else if (choice.size() >= request.max_size)
      choice.finish = DHLO_FINISH_LENGTH;
  } else {
    choice.finish = DHLO_FINISH_ERROR;
  }
  if (choice.finish == DHLO_FINISH_NONE) return true;
  done_.push_back(&choice);
  return false;
}

// Leaves the token with the sampler; false: the choice says why there is none.
bool Engine::draw(Choice& choice, const void* row) {
  const Request& request = *choice.request;
  const int64_t index = choice.made();
  if (request.constrained) {
    std::fill(allowed_.begin(), allowed_.end(), ~uint32_t{0});
    const int32_t* tokens = choice.tokens.data() + request.prompt_tokens;
    const int32_t status = fenced(
        [&] {
          return constrain_(constrain_ctx_, request.id, request.user, choice.index, tokens, index, allowed_.data(),
                            static_cast<int64_t>(allowed_.size()));
        },
        -1);
    if (status != 0) {
      choice.error = "the hook for constraints failed";
      return false;
    }
  }
  const TokenCounts* counts = request.rules.counts() ? &choice.counts : nullptr;
  const uint32_t* allowed = request.constrained ? allowed_.data() : nullptr;
  switch (sampler_->draw(row, request.rules, counts, allowed, choice.index, index)) {
    case Draw::kDone: return true;
    case Draw::kNan: choice.error = "the model gave a logit that is no number"; return false;
    case Draw::kNothing: choice.error = "no token is allowed"; return false;
  }
  return false;
}

void Engine::note_logprobs(Choice& choice) {
  choice.logprobs.push_back(sampler_->logprob());
  for (const auto& [token, logprob] : sampler_->top()) {
    choice.top_tokens.push_back(token);
    choice.top_logprobs.push_back(logprob);
  }
}

// Tells of tokens that no stop string can take back.
void Engine::give(Choice& choice) {
  const int64_t end = choice.size() - static_cast<int64_t>(choice.stops.held()), count = end - choice.given;
  if (count <= 0) return;
  made_.add(choice, end, "", false);
  choice.given = end;
  if (choice.logprobs.empty()) return;
  const auto top = static_cast<std::ptrdiff_t>(choice.top_tokens.size() / choice.logprobs.size()) * count;
  choice.logprobs.erase(choice.logprobs.begin(), choice.logprobs.begin() + count);
  choice.top_tokens.erase(choice.top_tokens.begin(), choice.top_tokens.begin() + top);
  choice.top_logprobs.erase(choice.top_logprobs.begin(), choice.top_logprobs.begin() + top);
}

// Gives back what the choice holds, and its place among those that run or wait.
void Engine::release(Choice& choice) noexcept {
  if (blocked_ == &choice) blocked_ = nullptr;
  if (choice.sequence)
    remove(choice);
  else
    waiting_.erase(&choice);
  choice.swapped = {};
}

// Gives back what the choice holds, and tells of its end with all tokens that it hasn't given. Does nothing if it has
// ended. Events have room for it.
void Engine::end(Choice& choice, dhlo_finish finish, const char* error, Events& events) noexcept {
  if (choice.ended) return;
  Request& request = *choice.request;
  choice.ended = true;
  choice.finish = finish;
  release(choice);
  --live_;
  if (--request.live == 0) {
    if (!request.begun) --unbegun_;
    ended_.push_back(request.id);
  }
  try {
    events.add(choice, choice.size(), error, request.live == 0);
  } catch (const std::bad_alloc&) {  // for its last tokens
    choice.finish = DHLO_FINISH_ERROR;
    events.add_end(choice, "out of memory", request.live == 0);
  }
  ++finished_[choice.finish];
  choice.given = choice.size();
}

void Engine::end(Request& request, dhlo_finish finish, const char* error, Events& events) noexcept {
  if (request.search != nullptr) return end_beams(request, finish, error, events);
  for (Choice& choice : request.choices) end(choice, finish, error, events);
}

void Engine::end_all(dhlo_finish finish, const char* error) noexcept {
  for (const auto& [id, request] : requests_) end(*request, finish, error, made_);
}

}  // namespace dhlo::serve
