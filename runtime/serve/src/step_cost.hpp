// What tokens of a step cost, learned from steps.
#pragma once

#include <array>
#include <cstdint>

namespace dhlo::serve {

// Time by number of tokens where there were such steps and it is small, as kernels change there; else as a line over
// tokens, by least squares over steps. Older ones weigh less.
class StepCost {
 public:
  void learn(int64_t tokens, int64_t ns) {
    const auto x = static_cast<double>(tokens), y = static_cast<double>(ns);
    for (double* sum : {&n_, &x_, &y_, &xx_, &xy_}) *sum *= kKeep;
    if (tokens < kFew) {
      Few& few = few_[static_cast<size_t>(tokens)];
      few.seen = few.seen < kSteps ? few.seen + 1 : kSteps;
      // The first of its size touches memory that later ones find, and one that was interrupted says little.
      const double most = few.seen > kFirst ? kOutlier * few.ns : few.seen > 1 ? few.ns : y;
      few.ns += ((y < most ? y : most) - few.ns) / (few.seen > kFirst ? few.seen : 1);
    }
    n_ += 1;
    x_ += x;
    y_ += y;
    xx_ += x * x;
    xy_ += x * y;
  }
  bool known() const { return n_ > 0; }
  // The time of a step of so many tokens.
  double of(int64_t tokens) const {
    if (tokens < kFew && few_[static_cast<size_t>(tokens)].seen > 0) return few_[static_cast<size_t>(tokens)].ns;
    const Line found = line();
    return found.base + found.slope * static_cast<double>(tokens);
  }
  // The time that so many tokens more take in a step of so many, as a part of its time.
  double of_more(int64_t tokens, int64_t more) const {
    const double base = of(tokens), part = (of(tokens + more) - base) / base,
                 least = kLeast * static_cast<double>(more);
    return part < least ? least : part;
  }

 private:
  static constexpr double kKeep = 0.98, kGuess = 0.125, kLeast = 0.005, kSteps = 32, kOutlier = 2, kFirst = 3;
  static constexpr int64_t kFew = 64;
  struct Few {
    double ns = 0, seen = 0;
  };
  struct Line {
    double base, slope;
  };
  // Both are positive, the base where there are no more than a few tokens.
  Line line() const {
    if (n_ == 0) return {1, kGuess};
    const double mean = y_ / n_, tokens = x_ / n_, spread = n_ * xx_ - x_ * x_;
    double slope = mean * kGuess / (1 + kGuess * tokens);  // until steps differ
    if (n_ > 4 && spread > 1e-6 * n_ * xx_) slope = (n_ * xy_ - x_ * y_) / spread;
    const double least = kLeast * mean / tokens, most = mean / tokens;
    slope = slope < least ? least : slope > most ? most : slope;
    return {mean - slope * tokens, slope};
  }

  std::array<Few, kFew> few_{};
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace dhlo::serve
