// What tokens of a step cost, learned from steps.
#pragma once

#include <cstdint>

namespace dhlo::serve {

// Time as a line over tokens, by least squares over steps, older ones weighing less.
class StepCost {
 public:
  void learn(int64_t tokens, int64_t ns) {
    const auto x = static_cast<double>(tokens), y = static_cast<double>(ns);
    for (double* sum : {&n_, &x_, &y_, &xx_, &xy_}) *sum *= kKeep;
    n_ += 1;
    x_ += x;
    y_ += y;
    xx_ += x * x;
    xy_ += x * y;
  }
  bool known() const { return n_ > 0; }
  // The time of a step of so many tokens.
  double of(int64_t tokens) const { return line().base + line().slope * static_cast<double>(tokens); }
  // The time of one token more in a step of so many sequences, as a part of what each of its tokens takes.
  double of_one_more(int64_t sequences) const {
    const auto rows = static_cast<double>(sequences);
    const double part = line().slope * rows / of(sequences);
    return part < kLeast ? kLeast : part > 1 ? 1 : part;
  }

 private:
  static constexpr double kKeep = 0.98, kGuess = 0.125, kLeast = 0.02;
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

  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace dhlo::serve
