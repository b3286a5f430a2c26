// Loops over rows of logits, in vectors of 16 floats, compiled for several instruction sets and chosen where they run.
#pragma once

#include <cstdint>

namespace dhlo::serve {

constexpr int64_t kLanes = 16;
constexpr int64_t kBlock = 512;  // floats that are summed at once; a multiple of kLanes

struct Peak {
  float value;  // of those that are numbers; -infinity if there are none
  bool nan;     // whether there is one that is none
};

struct Above {
  double mass;
  int64_t count;
};

// Lengths are multiples of kLanes; memory needs no alignment.
struct Lanes {
  Peak (*peak)(const float* x, int64_t n);
  // w[i] = exp((x[i] - peak) / temperature), and the sum of each kBlock of them in sums.
  void (*weights)(const float* x, int64_t n, float peak, float temperature, float* w, float* sums);
  // Of all with x[i] >= least: the sum of w[i], and how many there are.
  Above (*above)(const float* x, const float* w, int64_t n, float least);
  // Sets w[i] to 0 where x[i] < least, and sums as above. Returns how many there are with x[i] == least.
  int64_t (*drop)(const float* x, int64_t n, float least, float* w, float* sums);
  void (*widen_bf16)(const uint16_t* from, int64_t n, float* to);
  void (*widen_f16)(const uint16_t* from, int64_t n, float* to);
};

// The best that this machine runs.
const Lanes& lanes();

}  // namespace dhlo::serve
