// What the next step computes: a token of each choice that decodes, then parts of prompts, by priority,
// arrival and length.
#include <algorithm>
#include <chrono>
#include <new>

#include "engine.hpp"

namespace dhlo::serve {
namespace {

// So long a choice waits for blocks that the tiers may have. What hasn't come by then is computed.
constexpr int64_t kFetchNs = 1000000000;
// So many drafts a tree has at most for each that would be worth it, were they to follow one another.
constexpr int64_t kTreeOfChain = 2;
// So many that wait have theirs fetched before it is their turn.
constexpr int64_t kFetchAhead = 8;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// What a choice takes of max_sequences: until a request's choices go their own ways, the first stands for all, and any
// of beams.
int64_t places(const Choice& choice) {
  const Request& request = *choice.request;
  return request.forked && request.search == nullptr ? 1 : static_cast<int64_t>(request.choices.size());
}

}  // namespace

// Ends requests that were cancelled or are late.
void Engine::expire(int64_t now) {
  if (!sweep_ && now < next_deadline_) return;
  sweep_ = false;
  next_deadline_ = INT64_MAX;
  for (const auto& [id, request] : requests_) {
    const bool late = request->deadline_ns != 0 && request->deadline_ns <= now;
    if (request->cancelled || late)
      end(*request, request->cancelled ? DHLO_FINISH_CANCELLED : DHLO_FINISH_DEADLINE, "", made_);
    else if (request->deadline_ns != 0)
      next_deadline_ = std::min(next_deadline_, request->deadline_ns);
  }
}

void Engine::schedule() {
  items_.clear();
  for (Choice* choice : running_) choice->scheduled = choice->passed = false;
  drafts_.clear();
  budget_ = max_step_tokens_;
  look_up_arrived();
  fetch_ahead();
  schedule_decodes();
  schedule_prompts();
  tokens_scheduled_ += max_step_tokens_ - budget_;
  if (!items_.empty()) fetching_ = 0;
  if (!items_.empty() || fetching_ != 0) return;
  // Requests that can't fit are refused, and the first choice may take all others' blocks: this is for a cache that
  // gives less room than it said.
  if (Choice* stuck = !running_.empty() ? running_.front() : !waiting_.empty() ? *waiting_.begin() : nullptr)
    end(*stuck->request, DHLO_FINISH_ERROR, "the pools have no room for it", made_);
}

void Engine::schedule_decodes() {
  decoding_ = static_cast<int64_t>(
      std::count_if(running_.begin(), running_.end(), [](const Choice* choice) { return choice->decodes(); }));
  int64_t slack = budget_ - decoding_;  // for drafts, half of it where prompts want some
  if (decoding_ < static_cast<int64_t>(running_.size()) || !waiting_.empty()) slack /= 2;
  for (size_t i = 0; i < running_.size(); ++i) {  // choices that give up their blocks are taken from the end
    Choice& choice = *running_[i];
    if (choice.request->search != nullptr) {
      if (i == 0 || running_[i - 1]->request != choice.request) schedule_beams(*choice.request);
      continue;
    }
    if (!choice.decodes()) continue;
    const auto at = static_cast<int64_t>(drafts_.size());
    DraftPlan plan = plan_drafts(choice, std::min(slack, evict(choice) - 1));
    if (plan.length > 0 && !cache_->reserve(*choice.sequence, choice.size() + plan.length)) plan = {};
    if (plan.length == 0) drafts_.resize(static_cast<size_t>(at));
    if (plan.length == 0 && !make_room(choice, choice.size())) continue;
    slack -= plan.length;
    (plan.by_model ? model_account_ : lookup_account_).plan(plan.cost);
    add_item(choice, choice.size(), at, plan);
  }
}

// Appends drafts of the lookup, or room for some of the draft model's: of those that give most for their time.
Engine::DraftPlan Engine::plan_drafts(Choice& choice, int64_t slack) {
  if (!choice.request->speculate || !choice.request->forked) return {};  // choices share no more than the prompt
  const int64_t most = std::min(slack, choice.request->max_size - choice.size() - 1);
  if (most < 1) return {};
  const PromptLookup::Match match = prompt_lookup_ > 0 ? choice.lookup.find(choice.tokens) : PromptLookup::Match();
  DraftPlan best = plan_lookup(choice, most, match);
  if (const DraftPlan other = plan_model(choice, most);
      other.length > 0 && (best.length == 0 || other.speed > best.speed))
    best = other;
  if (best.by_model) {
    drafts_.resize(drafts_.size() + static_cast<size_t>(best.length));
  } else if (best.length > 0) {
    const int32_t* from = choice.tokens.data() + match.from;
    for (int32_t i = 0; i < static_cast<int32_t>(best.length); ++i) drafts_.push_back({from[i], i - 1});
  }
  return best;
}

Engine::DraftPlan Engine::plan_lookup(Choice& choice, int64_t most, PromptLookup::Match match) {
  if (match.from == 0) return {};
  DraftLength& length = choice.lookup_lengths[match.kind];
  const double times = lookup_account_.times();
  auto cost = [&](int64_t drafts) { return times * cost_.of_more(decoding_, drafts); };
  auto [drafts, speed] = length.best(std::min({most, prompt_lookup_, choice.size() - static_cast<int64_t>(match.from)}),
                                     [&](int64_t n) { return 1 + cost(n) * static_cast<double>(decoding_); });
  if (drafts == 0 && length.tries()) drafts = 1;
  if (drafts == 0 || !lookup_account_.affords(cost(drafts), cost_.of(decoding_))) return {};
  return {drafts, speed, cost(drafts) / times, match.kind, false};
}

// What the draft model hasn't seen yet costs something once, and is of use for all tokens that are left to say.
Engine::DraftPlan Engine::plan_model(Choice& choice, int64_t most) {
  if (drafter_ == nullptr || choice.draft.failed) return {};
  const int64_t room = std::min({most, draft_tokens_, drafter_->max_positions() - choice.size()});
  if (room < 1) return {};
  DraftLength& length = choice.draft.length;
  const double times = model_account_.times();
  const int64_t unseen = choice.size() - choice.draft.computed - 1;
  const double seeing = drafter_->cost_of_seeing(decoding_, unseen, cost_);
  const auto left = static_cast<double>(choice.request->max_size - choice.size());
  auto cost = [&](int64_t drafts) {
    return times * (cost_.of_more(decoding_, drafts) + drafter_->cost(decoding_, drafts, cost_));
  };
  auto [drafts, speed] = length.best(room, [&](int64_t n) {
    const double part = std::min(1., static_cast<double>(n + 1) / left);
    return 1 + (cost(n) + times * seeing * part) * static_cast<double>(decoding_);
  });
  // What it sees is worth its time where drafts are known to be accepted. Until that is known, and what they cost, some
  // are tried at once.
  const bool known = model_rates_.known(choice.request->rules.greedy()), pays = drafts > 0 && known;
  if (drafts == 0 && (length.tries() || !known)) drafts = 1;
  if (drafts == 0) return {};
  if (!model_account_.affords(cost(drafts) + (pays ? 0 : times * seeing), cost_.of(decoding_))) return {};
  const double seen = drafter_->cost_of_seeing(decoding_, std::min(unseen, max_step_tokens_), cost_);
  const double expected = cost(drafts) / times + seen;
  // A tree has as many as turn out to be worth it: that is known when they are made.
  if (drafter_->branches(choice.request->rules) > 1) drafts = std::min({room, kTreeOfChain * drafts, kMostTree});
  return {drafts, speed, expected, 0, true};
}

// What the cache knows of prompts that came since the last step, which gives them other places among those that wait.
void Engine::look_up_arrived() {
  while (last_looked_up_ < last_id_) {
    const auto found = requests_.find(++last_looked_up_);
    if (found == requests_.end()) continue;
    Choice& first = found->second->choices.front();
    Waiting::node_type node = waiting_.extract(&first);
    if (node.empty()) continue;
    const Tokens prompt{first.tokens.data(), first.tokens.size()};
    found->second->known_tokens = cache_->known(prompt, found->second->salt);
    waiting_.insert(std::move(node));
  }
}

// Of those that run.
Choice* Engine::next_prompt() const {
  Choice* next = nullptr;
  for (Choice* choice : running_)
    if (!choice->scheduled && !choice->passed && choice->computed != choice->goal() &&
        (next == nullptr || Sooner()(choice, next)))
      next = choice;
  return next;
}

void Engine::schedule_prompts() {
  bool admits = true;
  while (budget_ > 0) {
    Choice* const next = next_prompt();
    Choice* const first = admits && !waiting_.empty() ? *waiting_.begin() : nullptr;
    if (first != nullptr && (next == nullptr || Sooner()(first, next))) {
      admits = admit(*first);
      continue;
    }
    if (next == nullptr) return;
    const int64_t end = std::min(next->goal(), next->computed + std::min(budget_, evict(*next)));
    if (make_room(*next, end))
      add_item(*next, end, 0, {});
    else
      next->passed = true;
  }
}

void Engine::add_item(Choice& choice, int64_t end, int64_t drafts_at, const DraftPlan& drafts) {
  choice.scheduled = true;
  items_.push_back({&choice, choice.computed, end, drafts_at, drafts.length, -1, drafts.by_model, drafts.kind,
                    drafts.cost, 0, nullptr});
  budget_ -= end - choice.computed + drafts.length;
}

// Takes the choice out of the step again, if it is in it.
void Engine::drop_item(Choice& choice) {
  if (!choice.scheduled) return;
  const auto item =
      std::find_if(items_.begin(), items_.end(), [&](const Item& each) { return each.choice == &choice; });
  budget_ += item->end - item->first + item->drafts;
  items_.erase(item);
  choice.scheduled = false;
}

// Takes the first that waits to those that run, if there is room for all that it has.
bool Engine::admit(Choice& choice) {
  if (blocked_ == &choice && free_blocks() <= blocked_free_ && !running_.empty()) {
    // Nothing has changed, unless others of less priority run that can make room.
    if (running_.back()->request->priority <= choice.request->priority) return false;
  }
  if (waits_for_tiers(choice)) return false;
  if (choice.request->source != nullptr && choice.request->place < 0 && encodes()) return false;  // with the next step
  while (in_work() + places(choice) > limits_.max_sequences)
    if (!yield_to(choice)) return false;
  const Tokens tokens{choice.tokens.data(), static_cast<size_t>(choice.goal())};
  Sequence sequence = choice.swapped ? Sequence() : cache_->begin(tokens, choice.request->salt);
  if (!sequence && !choice.swapped) throw std::bad_alloc();
  const int64_t cached = sequence.cached();
  const int64_t beams = choice.request->search != nullptr ? static_cast<int64_t>(choice.request->choices.size()) : 1;
  const int64_t most = std::min(choice.size() + 1, evict_to_);
  const int64_t wanted = choice.request->blocks_of(beams, most, step_.block_slots()) - cached / step_.block_slots();
  // Who runs will soon want another block each.
  while (!running_.empty() && free_blocks() < wanted + static_cast<int64_t>(running_.size())) {
    if (yield_to(choice)) continue;
    {
      const Sequence given_back = std::move(sequence);
    }
    choice.fetch_until_ns = 0;  // what came may be evicted until there is room
    blocked_ = &choice;
    blocked_free_ = free_blocks();
    return false;
  }
  if (choice.swapped && !(sequence = cache_->swap_in(choice.swapped))) {
    choice.swapped = {};  // there is no memory for it: it is computed again
    return admit(choice);
  }
  waiting_.erase(&choice);
  choice.computed = sequence.size();
  choice.sequence.emplace(std::move(sequence));
  choice.cell = step_.take_cell();
  Request& request = *choice.request;
  if (request.source != nullptr && request.place < 0) request.place = step_.sources()->take();
  if (!request.begun) {
    request.begun = true;
    for (Choice& each : request.choices) {
      for (size_t kind = 0; kind < PromptLookup::kKinds; ++kind)
        each.lookup_lengths[kind].start(lookup_rates_[kind].of(request.rules.greedy()));
      each.draft.length.start(model_rates_.of(request.rules.greedy()));
    }
    request.cached_tokens = cached;
    counts_.cached_tokens += cached;
    --unbegun_;
  }
  insert_running(choice);
  return true;
}

// Begins to bring what the tiers have of the choice's tokens, once.
void Engine::fetch(Choice& choice) {
  if (choice.fetch_until_ns != 0 || choice.swapped) return;
  choice.fetch = cache_->prefetch({choice.tokens.data(), static_cast<size_t>(choice.goal())}, choice.request->salt);
  choice.fetch_until_ns = now_ns() + kFetchNs;
}

// The same for those that wait first, as far as all of it can lie ready: what comes later pushes out what came earlier.
// So it is asked for once more, and what there is of it stays, where another has come before it.
void Engine::fetch_ahead() {
  int64_t left = kFetchAhead, room = fetched_bytes_;
  bool begun = false;
  auto at = waiting_.begin();
  for (; at != waiting_.end() && left > 0; ++at, --left) {
    Choice& choice = **at;
    room -= most_blocks(choice.size()) * step_.block_bytes();
    if (room < 0) break;
    if (&choice == blocked_ || choice.swapped) continue;
    if (begun) choice.fetch_until_ns = 0;
    begun = begun || choice.fetch_until_ns == 0;
    fetch(choice);
  }
  for (; begun && at != waiting_.end(); ++at) (*at)->fetch_until_ns = 0;
}

// Whether it isn't its turn yet because of what the tiers may have of its tokens.
bool Engine::waits_for_tiers(Choice& choice) {
  if (fetched_bytes_ == 0 || choice.swapped) return false;
  fetch(choice);
  if (cache_->prefetched(choice.fetch)) return false;
  if (now_ns() < choice.fetch_until_ns && cache_->prefetched(late_fetch_)) {
    fetching_ = choice.fetch;
    return true;
  }
  late_fetch_ = choice.fetch;  // a tier that hangs holds up one choice, not each
  return false;
}

// Lets the last that runs give up its blocks, if it is of less priority.
bool Engine::yield_to(const Choice& choice) {
  if (running_.empty() || running_.back()->request->priority <= choice.request->priority) return false;
  preempt(*running_.back());
  return true;
}

// Blocks for so many tokens of a choice that runs, those of choices behind it if there are no others.
bool Engine::make_room(Choice& choice, int64_t tokens) {
  while (!cache_->reserve(*choice.sequence, tokens)) {
    // Beams of a request don't push out each other.
    const Choice& last = *running_.back();
    if (&last == &choice || (choice.request->search != nullptr && last.request == choice.request)) return false;
    preempt(*running_.back());
  }
  return true;
}

// So many tokens the choice may take now: with them it comes to its bound, where it goes on without some blocks. That
// depends on its tokens' positions alone, never on what a step computes of it: what a choice says is the same in any
// company, with drafts, and computed again.
int64_t Engine::evict(Choice& choice) {
  if (evict_to_ == INT64_MAX) return INT64_MAX;
  Sequence& sequence = *choice.sequence;
  if (sequence.size() - sequence.evicted() == evict_to_)
    cache_->evict(sequence, choice.computed < choice.request->prompt_tokens ? evicted_at_once_ : 1);
  return evict_to_ - (sequence.size() - sequence.evicted());
}

// That a choice of so many tokens has at most.
int64_t Engine::most_blocks(int64_t tokens) const { return cache_->blocks_for(std::min(tokens, evict_to_)); }

// Takes what the choice has computed out of the pools, if that is wanted and there is memory for it.
bool Engine::swap_out(Choice& choice) {
  const int64_t kept = choice.sequence->size() - choice.sequence->evicted();
  const int64_t bytes = cache_->blocks_for(kept) * step_.block_bytes();
  if (step_.has_states()) return false;  // they would be lost
  if (bytes == 0 || bytes > swap_bytes_ - cache_->stats().swapped_bytes) return false;
  choice.swapped = cache_->swap_out(*choice.sequence);
  return static_cast<bool>(choice.swapped);
}

// The choice goes on later: what it has computed is swapped out, or lost but for blocks that the cache keeps.
void Engine::preempt(Choice& choice) {
  if (choice.request->search != nullptr && choice.request->forked) return preempt_beams(*choice.request);
  if (swap_out(choice)) ++counts_.swaps;
  remove(choice);
  drop_item(choice);
  choice.fetch_until_ns = 0;
  waiting_.insert(&choice);
  ++counts_.preemptions;
}

void Engine::insert_running(Choice& choice) {
  choice.passed = false;  // of the step that it gave up its blocks in
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &choice, Earlier()), &choice);
}

// Takes a choice from those that run, and its blocks.
void Engine::remove(Choice& choice) {
  const auto at = std::find(running_.begin(), running_.end(), &choice);
  if (at != running_.end()) running_.erase(at);
  choice.sequence.reset();
  step_.give_cell(choice.cell);
  choice.cell = -1;
  leave(*choice.request);
  choice.computed = 0;
  choice.draft.drop();
}

// Whether the step computes what a request is about: of one alone, so that others aren't held up by several.
bool Engine::encodes() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const Choice* choice) { return choice->request->place >= 0 && !choice->request->encoded; });
}

// Gives back the place of what a request is about, once none of its choices runs.
void Engine::leave(Request& request) noexcept {
  if (request.place < 0) return;
  for (const Choice& choice : request.choices)
    if (choice.sequence) return;
  step_.sources()->give(request.place);
  request.place = -1;
  request.encoded = false;
}

int64_t Engine::in_work() const {
  int64_t all = 0;
  const Request* counted = nullptr;
  for (const Choice* choice : running_) {
    if (choice->request->search == nullptr || choice->request != counted) all += places(*choice);
    counted = choice->request;
  }
  return all;
}

// Of the group that has the least.
int64_t Engine::free_blocks() const {
  int64_t least = INT64_MAX;
  for (int64_t group = 0; group < groups_; ++group) least = std::min(least, cache_->free_blocks(group));
  return least;
}

}  // namespace dhlo::serve
