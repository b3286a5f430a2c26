// Beam search in the engine: a request's choices are its beams, each with a sequence of its own, which part where one
// goes on in several ways. A step has all of them or none.
#include <algorithm>
#include <new>

#include "engine.hpp"

namespace dhlo::serve {

// A beam's row, or a part of what is computed before there are rows. When all have theirs, the beams go on.
void Engine::take_beam(const Item& item) {
  Choice& choice = *item.choice;
  Request& request = *choice.request;
  if (item.row >= 0) {
    if (request.search->take_row(choice.index, item.row)) advance(request);
  } else if (!request.forked && choice.computed == choice.goal()) {
    spread(request);
  }
}

// A token for each beam, as many beams as are likely enough.
void Engine::advance(Request& request) {
  BeamSearch& search = *request.search;
  Choice& first = request.choices.front();
  if (!weigh_beams(request)) {
    first.finish = DHLO_FINISH_ERROR;
    done_.push_back(&first);
    return;
  }
  request.forked = true;
  const auto live =
      std::find_if(search.beams().begin(), search.beams().end(), [](const Beam& beam) { return beam.live; });
  const int64_t made = request.choices[static_cast<size_t>(live - search.beams().begin())].made() + 1;
  search.choose(made);
  keep_ended(request, made);
  counts_.generated_tokens += static_cast<int64_t>(search.next().size());
  if (!search.over(made)) return go_on(request);
  first.finish = DHLO_FINISH_STOP;
  done_.push_back(&first);
}

// What each beam may go on with. False: the first choice says what is wrong.
bool Engine::weigh_beams(Request& request) {
  BeamSearch& search = *request.search;
  for (Choice& choice : request.choices) {
    Beam& beam = search.beams()[static_cast<size_t>(choice.index)];
    if (!beam.live) continue;
    const Draw drawn =
        sampler_->weigh(step_.logits(beam.row), request.rules, &choice.counts, std::max(request.rules.logprobs, 0));
    if (drawn == Draw::kNan) request.choices.front().error = "the model gave a logit that is no number";
    if (drawn == Draw::kNan) return false;
    if (drawn == Draw::kNothing) continue;
    search.offer(choice.index, *sampler_, request.ends);
    if (request.rules.logprobs > 0) beam.top.assign(sampler_->top().begin(), sampler_->top().end());
  }
  return true;
}

namespace {

// Appends a token's log-probabilities.
template <class Text>
void note(Text& text, float logprob, const Beam& beam) {
  text.logprobs.push_back(logprob);
  for (const auto& [token, value] : beam.top) {
    text.top_tokens.push_back(token);
    text.top_logprobs.push_back(value);
  }
}

template <class From, class To>
void copy_logprobs(const From& from, To& to) {
  to.logprobs = from.logprobs;
  to.top_tokens = from.top_tokens;
  to.top_logprobs = from.top_logprobs;
}

}  // namespace

void Engine::keep_ended(Request& request, int64_t made) {
  BeamSearch& search = *request.search;
  for (const Continuation& each : search.ended()) {
    Hypothesis* kept = search.keep(search.score(each.sum, made));
    if (kept == nullptr) continue;
    const Choice& choice = request.choices[static_cast<size_t>(each.beam)];
    kept->tokens = choice.tokens;
    kept->tokens.push_back(each.token);
    const bool stops = std::binary_search(request.ends.begin(), request.ends.end(), each.token);
    kept->finish = stops ? DHLO_FINISH_STOP : DHLO_FINISH_LENGTH;
    if (request.rules.logprobs < 0) continue;
    copy_logprobs(choice, *kept);
    note(*kept, each.logprob, search.beams()[static_cast<size_t>(each.beam)]);
  }
}

// The first of a beam's continuations takes over what it has; others share its blocks. Those of beams that don't go on
// are given back before.
void Engine::go_on(Request& request) {
  BeamSearch& search = *request.search;
  const std::vector<Continuation>& next = search.next();
  const std::vector<int32_t>& places = search.go_on();
  for (size_t i = 0; i < next.size(); ++i)
    if (places[i] != next[i].beam) request.choices[static_cast<size_t>(places[i])].sequence.reset();
  for (Choice& choice : request.choices)
    if (!search.beams()[static_cast<size_t>(choice.index)].live && choice.sequence) remove(choice);
  for (size_t i = 0; i < next.size(); ++i) {
    if (places[i] == next[i].beam) continue;
    const Choice& from = request.choices[static_cast<size_t>(next[i].beam)];
    Choice& choice = request.choices[static_cast<size_t>(places[i])];
    const auto prompt = static_cast<std::ptrdiff_t>(request.prompt_tokens);
    choice.tokens.resize(static_cast<size_t>(prompt));
    choice.tokens.insert(choice.tokens.end(), from.tokens.begin() + prompt, from.tokens.end());
    if (request.rules.counts()) choice.counts = from.counts;
    if (request.rules.logprobs >= 0) copy_logprobs(from, choice);
    join(choice, cache_->fork(*from.sequence), from);
  }
  for (size_t i = 0; i < next.size(); ++i) {
    Choice& choice = request.choices[static_cast<size_t>(places[i])];
    choice.tokens.push_back(next[i].token);
    if (request.rules.counts()) choice.counts.add(next[i].token, true);
    if (request.rules.logprobs >= 0) note(choice, next[i].logprob, search.beams()[static_cast<size_t>(next[i].beam)]);
  }
}

// A beam begins with what another one has computed, and has a sequence of as many tokens or more.
void Engine::join(Choice& choice, Sequence sequence, const Choice& from) {
  if (!sequence) throw std::bad_alloc();
  const bool runs = std::find(running_.begin(), running_.end(), &choice) != running_.end();
  choice.computed = sequence.size();
  choice.sequence.emplace(std::move(sequence));
  if (choice.cell < 0) choice.cell = step_.take_cell();
  if (choice.cell >= 0) step_.copy_states(from.cell, choice.cell);
  if (!runs) insert_running(choice);
}

// The prompt of beams that had given up their blocks is there again: each computes the rest of its own tokens, but for
// what the cache still knows.
void Engine::spread(Request& request) {
  request.forked = true;
  Choice& first = request.choices.front();
  auto known = [&](const Choice& choice) {
    return cache_->begin({choice.tokens.data(), choice.tokens.size()}, request.salt);
  };
  for (size_t i = 1; i < request.choices.size(); ++i) {
    Choice& choice = request.choices[i];
    if (!request.search->beams()[i].live) continue;
    Sequence sequence = known(choice);
    if (sequence.size() <= first.computed) sequence = cache_->fork(*first.sequence);
    join(choice, std::move(sequence), first);
  }
  if (!request.search->beams().front().live) return remove(first);
  if (Sequence sequence = known(first); sequence.size() > first.computed) {
    first.computed = sequence.size();
    *first.sequence = std::move(sequence);
  }
}

// A token of each, if all have computed what they have and there is room for all.
void Engine::schedule_beams(Request& request) {
  if (!request.forked) return;
  for (const Choice& choice : request.choices)
    if (choice.sequence && !choice.decodes()) return;
  for (Choice& choice : request.choices) {
    if (!choice.sequence) continue;
    if (make_room(choice, choice.size())) {
      add_item(choice, choice.size(), 0, {});
      continue;
    }
    for (Choice& each : request.choices)
      if (each.sequence) drop_item(each);
    return;
  }
}

// All go on later, together.
void Engine::preempt_beams(Request& request) {
  for (Choice& choice : request.choices) {
    if (!choice.sequence) continue;
    remove(choice);
    drop_item(choice);
  }
  request.forked = false;
  request.choices.front().fetch_until_ns = 0;
  waiting_.insert(&request.choices.front());
  ++counts_.preemptions;
}

// The best texts that there are become the request's choices; where it ends before the search is over, beams as they
// are are of them.
void Engine::end_beams(Request& request, dhlo_finish finish, const char* error, Events& events) noexcept {
  if (request.live == 0) return;
  BeamSearch& search = *request.search;
  std::vector<Hypothesis>& found = search.hypotheses();
  for (Choice& choice : request.choices) {
    release(choice);
    const Beam& beam = search.beams()[static_cast<size_t>(choice.index)];
    const bool early = finish == DHLO_FINISH_CANCELLED || finish == DHLO_FINISH_DEADLINE;
    if (!early || !beam.live || choice.made() == 0) continue;
    Hypothesis* kept = search.keep(search.score(beam.sum, choice.made()));
    if (kept == nullptr) continue;
    kept->finish = finish;
    kept->tokens.swap(choice.tokens);
    kept->logprobs.swap(choice.logprobs);
    kept->top_tokens.swap(choice.top_tokens);
    kept->top_logprobs.swap(choice.top_logprobs);
  }
  const auto given = static_cast<size_t>(request.live);
  for (size_t i = 0; i < given; ++i) {
    Choice& choice = request.choices[i];
    if (finish == DHLO_FINISH_ERROR || i >= found.size()) {
      choice.given = choice.size();
      const bool none = finish == DHLO_FINISH_STOP;
      end(choice, none ? DHLO_FINISH_ERROR : finish,
          none ? "beam search has found fewer texts: too few tokens are allowed" : error, events);
      continue;
    }
    choice.tokens.swap(found[i].tokens);
    choice.logprobs.swap(found[i].logprobs);
    choice.top_tokens.swap(found[i].top_tokens);
    choice.top_logprobs.swap(found[i].top_logprobs);
    choice.score = found[i].score;
    end(choice, found[i].finish, "", events);
  }
}

}  // namespace dhlo::serve
