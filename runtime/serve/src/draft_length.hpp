// How long drafts are, learned from what became of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dhlo::serve {

// Of a sequence, and of one source of drafts.
class DraftLength {
 public:
  // Of a new sequence: how often drafts are accepted in others.
  void start(double rate) { rate_ = rate; }
  double rate() const { return rate_; }

  // How long the next draft is, `most` at most. `price`: what each token of it takes, as a part of the time of a token
  // without drafts. Where none pays, a token is tried now and then.
  int64_t next(int64_t most, double price) {
    const int64_t length = best(most, price);
    if (length > 0 || most < 1) return length;
    return ++waited_ < pause_ ? 0 : 1;
  }

  // What became of a draft.
  void learn(int64_t drafted, int64_t accepted) {
    learn(drafted, accepted, kKeep, rate_);
    pause_ = accepted > 0 ? kFirstPause : std::min(pause_ * 2, kLongestPause);
    waited_ = 0;
  }

  // Moves a rate towards that of a draft's tokens that were verified, by 1 - keep for each.
  static void learn(int64_t drafted, int64_t accepted, double keep, double& rate) {
    const auto tried = static_cast<double>(std::min(accepted + 1, drafted));
    rate += (1 - std::pow(keep, tried)) * (static_cast<double>(accepted) / tried - rate);
  }

 private:
  static constexpr int64_t kFirstPause = 16, kLongestPause = 1024;
  static constexpr double kKeep = 0.8;

  // The length that gives most tokens for the time, if each token is as likely as another.
  int64_t best(int64_t most, double price) const {
    double chance = 1, tokens = 1, highest = 1;
    for (int64_t length = 1; length <= most; ++length) {
      chance *= rate_;
      tokens += chance;
      const double speed = tokens / (1 + static_cast<double>(length) * price);
      if (speed <= highest) return length - 1;
      highest = speed;
    }
    return std::max<int64_t>(most, 0);
  }

  double rate_ = 0.5;
  int64_t waited_ = 0, pause_ = kFirstPause;
};

// How often drafts of a source are accepted in all sequences: of those whose tokens are the most likely ones, and of
// the others.
class DraftRates {
 public:
  double of(bool greedy) const { return rates_[greedy ? 1 : 0]; }
  void learn(bool greedy, int64_t drafted, int64_t accepted) {
    DraftLength::learn(drafted, accepted, kKeep, rates_[greedy ? 1 : 0]);
  }

 private:
  static constexpr double kKeep = 0.98;
  double rates_[2] = {0.5, 0.5};
};

}  // namespace dhlo::serve
