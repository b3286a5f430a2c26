// Loops over rows of logits, 16 floats at a time, compiled for several instruction sets and chosen where they run.
#pragma once

#include <cstdint>

#include "span.hpp"

namespace dhlo::serve {

constexpr int64_t kLanes = 16;
constexpr int64_t kBlock = 512;  // floats that are summed at once; a multiple of kLanes
constexpr int64_t kPart = 64;    // floats of which the largest is found
constexpr int64_t kWays = 8;     // limits that are looked at in one pass

struct Peak {
  float value;  // of those that are numbers; -infinity if there are none
  bool nan;     // whether there is one that is none
};

// Lengths are multiples of kLanes; memory needs no alignment.
struct Lanes {
  Peak (*peak)(const float* x, int64_t n);
  // The largest of each of so many numbers, which are kPart of all but the last; returns how many there are.
  int64_t (*maxima)(const float* x, int64_t n, float* to);
  // w[i] = exp((x[i] - peak) / temperature), and the sum of each kBlock of them in sums.
  void (*weights)(const float* x, int64_t n, float peak, float temperature, float* w, float* sums);
  // For each of kWays limits: the sum of w[i] of all with x[i] >= it, or without w how many there are.
  void (*masses)(const float* x, const float* w, int64_t n, const float* least, double* masses);
  // The places in rising order of least <= x[i] < below, and how many there are. `to` has room for n.
  int64_t (*select)(const float* x, int64_t n, float least, float below, int32_t* to);
  // Sets w[i] to 0 where x[i] < least, and sums as above. Returns how many there are with x[i] == least.
  int64_t (*drop)(const float* x, int64_t n, float least, float* w, float* sums);
  void (*widen_bf16)(const uint16_t* from, int64_t n, float* to);
  void (*widen_f16)(const uint16_t* from, int64_t n, float* to);
};

// Those that this machine runs, the best last.
Span<const Lanes* const> all_lanes();
inline const Lanes& lanes() {
  const Span<const Lanes* const> all = all_lanes();
  return *all[all.size() - 1];
}

}  // namespace dhlo::serve
