// Loops over rows of logits. Each is written once, over vectors that the compiler splits as the target needs, and
// inlined into a function for each instruction set.
#include "lanes.hpp"

#include <cstring>
#include <limits>

#include "dhlo/runtime.h"

namespace dhlo::serve {
namespace {

using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));
using Halves = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t))));

#define DHLO_INLINE inline __attribute__((always_inline))

// Vectors are passed by reference: how they would be passed by value differs between instruction sets.
template <class Vector, class T>
DHLO_INLINE void load(const T* from, Vector& to) {
  std::memcpy(&to, from, sizeof to);
}

DHLO_INLINE float sum_of(const Floats& v) {
  float sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

DHLO_INLINE Peak peak_of(const float* x, int64_t n) {
  Floats most = Floats{} - std::numeric_limits<float>::infinity();
  Ints nan{};
  for (int64_t i = 0; i < n; i += kLanes) {
    Floats v;
    load(x + i, v);
    nan |= v != v;
    most = v > most ? v : most;
  }
  Peak peak{-std::numeric_limits<float>::infinity(), false};
  for (int64_t i = 0; i < kLanes; ++i) {
    peak.nan |= nan[i] != 0;
    if (most[i] > peak.value) peak.value = most[i];
  }
  return peak;
}

// exp of numbers up to 0, with errors below 2 units of the last place; 0 below -87.3.
DHLO_INLINE void exp_of(Floats& v) {
  const Floats least = Floats{} - 87.3f, round = Floats{} + 12582912.f;  // adding it leaves an integer
  const Ints seen = v >= least;
  const Floats x = seen ? v : least;
  const Floats n = (x * 1.44269504088896341f + round) - round;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  v = seen ? p * power : Floats{};
}

DHLO_INLINE void weights_of(const float* x, int64_t n, float peak, float temperature, float* w, float* sums) {
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = block + kBlock < n ? block + kBlock : n;
    Floats sum{};
    for (int64_t i = block; i < end; i += kLanes) {
      Floats v;
      load(x + i, v);
      v = (v - peak) / temperature;
      exp_of(v);
      sum += v;
      std::memcpy(w + i, &v, sizeof v);
    }
    sums[block / kBlock] = sum_of(sum);
  }
}

DHLO_INLINE Above above_of(const float* x, const float* w, int64_t n, float least) {
  Above all{0, 0};
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = block + kBlock < n ? block + kBlock : n;
    Floats sum{};
    Ints count{};
    for (int64_t i = block; i < end; i += kLanes) {
      Floats v, weight;
      load(x + i, v);
      load(w + i, weight);
      const Ints in = v >= least;
      sum += in ? weight : Floats{};
      count -= in;
    }
    all.mass += sum_of(sum);
    for (int64_t i = 0; i < kLanes; ++i) all.count += count[i];
  }
  return all;
}

DHLO_INLINE int64_t drop_of(const float* x, int64_t n, float least, float* w, float* sums) {
  int64_t equal = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = block + kBlock < n ? block + kBlock : n;
    Floats sum{};
    Ints count{};
    for (int64_t i = block; i < end; i += kLanes) {
      Floats v, weight;
      load(x + i, v);
      load(w + i, weight);
      count -= v == least;
      weight = v >= least ? weight : Floats{};
      sum += weight;
      std::memcpy(w + i, &weight, sizeof weight);
    }
    sums[block / kBlock] = sum_of(sum);
    for (int64_t i = 0; i < kLanes; ++i) equal += count[i];
  }
  return equal;
}

DHLO_INLINE void widen_bf16_of(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Halves bits;
    load(from + i, bits);
    const Ints wide = __builtin_convertvector(bits, Ints) << 16;
    std::memcpy(to + i, &wide, sizeof wide);
  }
}

// Exponents are moved by multiplying, which is right for subnormals, too; those of infinities and NaN are set.
DHLO_INLINE void widen_f16_of(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Halves bits;
    load(from + i, bits);
    const Ints word = __builtin_convertvector(bits, Ints), magnitude = (word & 0x7fff) << 13;
    Floats value;
    std::memcpy(&value, &magnitude, sizeof value);
    value *= 0x1p112f;
    Ints wide;
    std::memcpy(&wide, &value, sizeof wide);
    const Ints special = (word & 0x7c00) == 0x7c00;
    wide = (special ? (magnitude | 0x7f800000) : wide) | (word & 0x8000) << 16;
    std::memcpy(to + i, &wide, sizeof wide);
  }
}

#define DHLO_LANES(name, target)                                                                                  \
  namespace name {                                                                                                \
  target Peak peak(const float* x, int64_t n) { return peak_of(x, n); }                                           \
  target void weights(const float* x, int64_t n, float peak, float temperature, float* w, float* sums) {          \
    weights_of(x, n, peak, temperature, w, sums);                                                                 \
  }                                                                                                               \
  target Above above(const float* x, const float* w, int64_t n, float least) { return above_of(x, w, n, least); } \
  target int64_t drop(const float* x, int64_t n, float least, float* w, float* sums) {                            \
    return drop_of(x, n, least, w, sums);                                                                         \
  }                                                                                                               \
  target void widen_bf16(const uint16_t* from, int64_t n, float* to) { widen_bf16_of(from, n, to); }              \
  target void widen_f16(const uint16_t* from, int64_t n, float* to) { widen_f16_of(from, n, to); }                \
  const Lanes all{peak, weights, above, drop, widen_bf16, widen_f16};                                             \
  }

DHLO_LANES(baseline, )
#if defined(__x86_64__)
DHLO_LANES(avx2, __attribute__((target("avx2,fma"))))
DHLO_LANES(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))))
#endif
#undef DHLO_LANES

const Lanes& choose() {
#if defined(__x86_64__)
  if (dhlo_cpu_supports("avx512f") != 0 && dhlo_cpu_supports("avx512bw") != 0 && dhlo_cpu_supports("avx512dq") != 0 &&
      dhlo_cpu_supports("avx512vl") != 0)
    return avx512::all;
  if (dhlo_cpu_supports("avx2") != 0 && dhlo_cpu_supports("fma") != 0) return avx2::all;
#endif
  return baseline::all;
}

}  // namespace

const Lanes& lanes() {
  static const Lanes& chosen = choose();
  return chosen;
}

}  // namespace dhlo::serve
