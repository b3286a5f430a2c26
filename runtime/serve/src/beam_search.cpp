// Beam search: which continuations of a request's beams go on, which have ended, and when nothing better can come.
#include "beam_search.hpp"

#include <algorithm>

#include "lanes.hpp"

namespace dhlo::serve {

void BestContinuations::start(size_t most) {
  most_ = most;
  best_.clear();
  best_.reserve(most + 1);
}

void BestContinuations::offer(const Continuation& one) {
  if (!(one.sum > least())) return;
  best_.push_back(one);
  std::push_heap(best_.begin(), best_.end());
  if (best_.size() <= most_) return;
  std::pop_heap(best_.begin(), best_.end());
  best_.pop_back();
}

const std::vector<Continuation>& BestContinuations::sorted() {
  std::sort_heap(best_.begin(), best_.end());
  return best_;
}

BeamSearch::BeamSearch(int64_t width, double length_penalty, int32_t early_stopping, int64_t most)
    : width_(static_cast<size_t>(width)),
      length_penalty_(length_penalty),
      early_stopping_(early_stopping),
      most_(most),
      beams_(width_) {
  beams_.front().live = true;
  kept_.reserve(width_);
  ended_.reserve(width_);
  places_.reserve(width_);
  for (BestContinuations* each : {&on_, &off_}) each->start(width_);
}

bool BeamSearch::take_row(int32_t beam, int64_t row) {
  beams_[static_cast<size_t>(beam)].row = row;
  if (++rows_ < live_) return false;
  rows_ = 0;
  for (BestContinuations* each : {&on_, &off_}) each->start(width_);
  return true;
}

// Most blocks of a row have nothing that is good enough.
void BeamSearch::offer(int32_t beam, const Sampler& sampler, const std::vector<int32_t>& ends) {
  const double sum = beams_[static_cast<size_t>(beam)].sum;
  const float* x = sampler.weighed();
  for (const int32_t token : ends) {
    const float logprob = sampler.logprob_of(token);
    off_.offer({sum + logprob, beam, token, logprob});
  }
  for (int64_t block = 0; block < sampler.padded(); block += kBlock) {
    const int64_t end = std::min(block + kBlock, sampler.padded());
    if (!(sum + sampler.logprob_at(lanes().peak(x + block, end - block).value) > on_.least())) continue;
    for (int64_t i = block; i < std::min(end, sampler.vocabulary()); ++i) {
      const float logprob = sampler.logprob_at(x[i]);
      const auto token = static_cast<int32_t>(i);
      if (!(sum + logprob > on_.least()) || std::binary_search(ends.begin(), ends.end(), token)) continue;
      on_.offer({sum + logprob, beam, token, logprob});
    }
  }
}

// Of all together the best `width` may end; of those that don't, as many go on.
void BeamSearch::choose(int64_t made) {
  const std::vector<Continuation>&on = on_.sorted(), &off = off_.sorted();
  ended_.clear();
  auto a = on.begin(), b = off.begin();
  for (size_t taken = 0; taken < width_ && (a != on.end() || b != off.end()); ++taken) {
    const bool ends = a == on.end() || (b != off.end() && *b < *a);
    if (ends || made >= most_) ended_.push_back(ends ? *b : *a);
    ++(ends ? b : a);
  }
  next_ = &on;
}

const std::vector<int32_t>& BeamSearch::go_on() {
  live_ = static_cast<int64_t>(next_->size());
  for (Beam& beam : beams_) beam.live = false;
  places_.clear();
  for (const Continuation& each : *next_) {
    Beam& own = beams_[static_cast<size_t>(each.beam)];
    places_.push_back(own.live ? -1 : each.beam);
    own.live = true;
  }
  int32_t free = 0;
  for (int32_t& place : places_) {
    if (place >= 0) continue;
    while (beams_[static_cast<size_t>(free)].live) ++free;
    place = free;
    beams_[static_cast<size_t>(free)].live = true;
  }
  for (size_t i = 0; i < places_.size(); ++i) beams_[static_cast<size_t>(places_[i])].sum = (*next_)[i].sum;
  return places_;
}

bool BeamSearch::over(int64_t made) const {
  if (next_->empty() || made >= most_) return true;
  if (kept_.size() < width_) return false;
  if (early_stopping_ == DHLO_EARLY_STOPPING_FULL) return true;
  const bool longest = early_stopping_ == DHLO_EARLY_STOPPING_NEVER && length_penalty_ > 0;
  return score(next_->front().sum, longest ? most_ : made) <= kept_.back().score;
}

Hypothesis* BeamSearch::keep(double score) {
  if (kept_.size() < width_)
    kept_.emplace_back();
  else if (!(score > kept_.back().score))
    return nullptr;
  Hypothesis made = std::move(kept_.back());
  made.score = score;
  size_t at = kept_.size() - 1;
  for (; at > 0 && kept_[at - 1].score < score; --at) kept_[at] = std::move(kept_[at - 1]);
  kept_[at] = std::move(made);
  return &kept_[at];
}

}  // namespace dhlo::serve
