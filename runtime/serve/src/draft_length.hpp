// How long drafts are, learned from what became of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dhlo::serve {

// Of a sequence, and of one source of drafts.
class DraftLength {
 public:
  // `keep`: what a rate keeps of itself where another token is verified.
  explicit DraftLength(double keep = 0.8) : keep_(keep) {}
  // Of a new sequence: how often drafts are accepted in others.
  void start(double rate) { rate_ = rate; }
  double rate() const { return rate_; }

  // The length that gives most tokens for the time, if each token is as likely as another, and how many times as fast
  // it is as none. `cost(length)`: the time with such a draft, over that without. 0: none pays.
  struct Best {
    int64_t length;
    double speed;
  };
  template <class Cost>
  Best best(int64_t most, const Cost& cost) const {
    Best found{0, 1};
    double chance = 1, tokens = 1;
    for (int64_t length = 1; length <= most; ++length) {
      chance *= rate_;
      tokens += chance;
      const double speed = tokens / cost(length);
      if (speed > found.speed) found = {length, speed};
    }
    return found;
  }
  // Where none pays: whether a token is to be tried all the same, as it is now and then.
  bool tries() { return ++waited_ >= pause_; }

  // What became of a draft.
  void learn(int64_t drafted, int64_t accepted) {
    learn(drafted, accepted, std::min(keep_, 1 - 1 / (verified_ + kGuesses)), rate_);
    verified_ += static_cast<double>(std::min(accepted + 1, drafted));
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
  static constexpr double kGuesses = 4;  // what others' rate counts as

  double keep_, rate_ = 0.5, verified_ = 0;
  int64_t waited_ = 0, pause_ = kFirstPause;
};

// How often drafts of a source are accepted in all sequences: of those whose tokens are the most likely ones, and of
// the others.
class DraftRates {
 public:
  double of(bool greedy) const { return rates_[greedy ? 1 : 0]; }
  void learn(bool greedy, int64_t drafted, int64_t accepted) {
    DraftLength::learn(drafted, accepted, kKeep, rates_[greedy ? 1 : 0]);
    tried_[greedy ? 1 : 0] += std::min(accepted + 1, drafted);
  }
  // Whether it is more than a guess.
  bool known(bool greedy) const { return tried_[greedy ? 1 : 0] >= kTried; }

 private:
  static constexpr double kKeep = 0.98;
  static constexpr int64_t kTried = 16;
  double rates_[2] = {0.5, 0.5};
  int64_t tried_[2] = {};
};

// What drafts of a source have lost, in steps without drafts, less what they have gained since. It may be as much as
// some steps take, or some milliseconds, and a small part of all the time: so little is lost where nothing is accepted,
// whatever is expected.
class DraftAccount {
 public:
  // Whether it may lose so much in the step that is planned. `step_ns`: of such without drafts.
  bool affords(double cost, double step_ns) const { return lost_ + planned_ + cost <= most(step_ns); }
  void plan(double cost) { planned_ += cost; }
  // A step is over.
  void step() {
    planned_ = 0;
    lost_ = std::max(lost_ - kAllowance, 0.);
  }
  // What drafts were expected to cost, how many times that they did, and what they have saved.
  void settle(double cost, double times, double gain, double step_ns) {
    times_ += (1 - kKeep) * (times - times_);
    lost_ = std::clamp(lost_ + cost * times - gain, 0., 2 * most(step_ns));
  }
  // How many times what is expected they cost.
  double times() const { return times_; }

 private:
  static constexpr double kAllowance = 0.005, kSteps = 12, kNs = 5e6, kKeep = 0.9;
  static double most(double step_ns) { return std::max(kSteps, kNs / step_ns); }

  double lost_ = 0, planned_ = 0, times_ = 1;
};

}  // namespace dhlo::serve
