// Events as hosts get them.
#include "events.hpp"

#include <algorithm>
#include <cstdio>

namespace dhlo::serve {
namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from, int64_t count) {
  to.insert(to.end(), from.begin(), from.begin() + count);
}

}  // namespace

void Events::clear() {
  made_.clear();
  tokens_.clear();
  top_tokens_.clear();
  logprobs_.clear();
  top_logprobs_.clear();
}

Events::Made Events::made_of(const Choice& choice, int64_t end, const char* error, bool last) noexcept {
  const Request& request = *choice.request;
  Made made{};
  dhlo_event& event = made.event;
  event.struct_bytes = sizeof event;
  event.choice = choice.index;
  event.request = request.id;
  event.user = request.user;
  event.finish = choice.finish;
  event.last = last ? 1 : 0;
  event.num_tokens = end - choice.given;
  event.stop = choice.stop;
  event.prompt_tokens = request.prompt_tokens;
  event.cached_tokens = request.cached_tokens;
  event.score = choice.score;
  std::snprintf(made.error, sizeof made.error, "%s", error);
  return made;
}

void Events::add_end(const Choice& choice, const char* error, bool last) noexcept {
  made_.push_back(made_of(choice, choice.given, error, last));
}

void Events::add(const Choice& choice, int64_t end, const char* error, bool last) {
  Made made = made_of(choice, end, error, last);
  dhlo_event& event = made.event;
  made.tokens = tokens_.size();
  made.logprobs = logprobs_.size();
  made.top = top_tokens_.size();
  tokens_.insert(tokens_.end(), choice.tokens.begin() + choice.given, choice.tokens.begin() + end);
  if (choice.request->rules.logprobs >= 0 && event.num_tokens > 0) {
    made.with_logprobs = true;
    append(logprobs_, choice.logprobs, event.num_tokens);
    event.num_top = static_cast<int64_t>(choice.top_tokens.size() / choice.logprobs.size());
    append(top_tokens_, choice.top_tokens, event.num_tokens * event.num_top);
    append(top_logprobs_, choice.top_logprobs, event.num_tokens * event.num_top);
  }
  made_.push_back(made);
}

void Events::take(Events& other) {
  if (made_.empty()) {
    std::swap(made_, other.made_);
    std::swap(tokens_, other.tokens_);
    std::swap(top_tokens_, other.top_tokens_);
    std::swap(logprobs_, other.logprobs_);
    std::swap(top_logprobs_, other.top_logprobs_);
  } else {
    made_.reserve(made_.size() + other.made_.size());  // so that all or nothing is taken
    tokens_.reserve(tokens_.size() + other.tokens_.size());
    top_tokens_.reserve(top_tokens_.size() + other.top_tokens_.size());
    logprobs_.reserve(logprobs_.size() + other.logprobs_.size());
    top_logprobs_.reserve(top_logprobs_.size() + other.top_logprobs_.size());
    const size_t first = made_.size();
    append(made_, other.made_);
    for (size_t i = first; i < made_.size(); ++i) {
      made_[i].tokens += tokens_.size();
      made_[i].logprobs += logprobs_.size();
      made_[i].top += top_tokens_.size();
    }
    append(tokens_, other.tokens_);
    append(top_tokens_, other.top_tokens_);
    append(logprobs_, other.logprobs_);
    append(top_logprobs_, other.top_logprobs_);
  }
  other.clear();
}

const std::vector<const dhlo_event*>& Events::pointers() {
  pointers_.clear();
  for (Made& made : made_) {
    dhlo_event& event = made.event;
    event.tokens = event.num_tokens > 0 ? tokens_.data() + made.tokens : nullptr;
    const bool with = made.with_logprobs;
    event.logprobs = with ? logprobs_.data() + made.logprobs : nullptr;
    event.top_tokens = with && event.num_top > 0 ? top_tokens_.data() + made.top : nullptr;
    event.top_logprobs = with && event.num_top > 0 ? top_logprobs_.data() + made.top : nullptr;
    event.error = made.error;
    pointers_.push_back(&event);
  }
  return pointers_;
}

}  // namespace dhlo::serve
