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
  // The time of one token more in a step of so many sequences, as a part of what each of its tokens takes.
  double of_one_more(int64_t sequences) const {
    const auto rows = static_cast<double>(sequences);
    const double spread = n_ * xx_ - x_ * x_;
    double slope = kGuess, base = 1;
    if (n_ > 4 && spread > 1e-6 * n_ * xx_) {
      slope = (n_ * xy_ - x_ * y_) / spread;
      base = (y_ - slope * x_) / n_;
    }
    const double whole = base + slope * rows;
    if (!(slope > 0) || !(whole > 0)) return kLeast;
    const double part = slope * rows / whole;
    return part < kLeast ? kLeast : part > 1 ? 1 : part;
  }

 private:
  static constexpr double kKeep = 0.98, kGuess = 0.125, kLeast = 0.02;
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace dhlo::serve
