// Loops over rows of logits. Each is written once, over vectors that the compiler splits as the target needs, and
// inlined into a function for each instruction set.
#include "lanes.hpp"

#include <cstring>
#include <limits>

#include "dhlo/runtime.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dhlo::serve {
namespace {

using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
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

DHLO_INLINE int64_t maxima_of(const float* x, int64_t n, float* to) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kPart * kLanes, count += kLanes) {
    const int64_t end = begin + kPart * kLanes < n ? begin + kPart * kLanes : n;
    Floats most;
    load(x + begin, most);
    for (int64_t i = begin + kLanes; i < end; i += kLanes) {
      Floats v;
      load(x + i, v);
      most = v > most ? v : most;
    }
    std::memcpy(to + count, &most, sizeof most);
  }
  return count;
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

template <bool kWeighed>
DHLO_INLINE void masses_by(const float* x, const float* w, int64_t n, const float* least, double* masses) {
  Doubles all[kWays]{};
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = block + kBlock < n ? block + kBlock : n;
    Floats sums[kWays]{};
    for (int64_t i = block; i < end; i += kLanes) {
      Floats v, weight = Floats{} + 1.f;
      load(x + i, v);
      if (kWeighed) load(w + i, weight);
      for (int64_t k = 0; k < kWays; ++k) sums[k] += v >= least[k] ? weight : Floats{};
    }
    for (int64_t k = 0; k < kWays; ++k) all[k] += __builtin_convertvector(sums[k], Doubles);
  }
  for (int64_t k = 0; k < kWays; ++k) {
    masses[k] = 0;
    for (int64_t i = 0; i < kLanes; ++i) masses[k] += all[k][i];
  }
}

DHLO_INLINE void masses_of(const float* x, const float* w, int64_t n, const float* least, double* masses) {
  w != nullptr ? masses_by<true>(x, w, n, least, masses) : masses_by<false>(x, w, n, least, masses);
}

DHLO_INLINE int64_t select_of(const float* x, int64_t n, float least, float below, int32_t* to) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    to[count] = static_cast<int32_t>(i);
    count += static_cast<int64_t>(x[i] >= least) & static_cast<int64_t>(x[i] < below);
  }
  return count;
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

#if defined(__x86_64__)
#define DHLO_AVX2 __attribute__((target("avx2,fma")))
#define DHLO_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))

// Vectors of which most are passed by: others are rare.
DHLO_AVX2 int64_t select_avx2(const float* x, int64_t n, float least, float below, int32_t* to) {
  int64_t count = 0;
  const __m256 low = _mm256_set1_ps(least), high = _mm256_set1_ps(below);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const __m256 in = _mm256_and_ps(_mm256_cmp_ps(v, low, _CMP_GE_OQ), _mm256_cmp_ps(v, high, _CMP_LT_OQ));
    for (auto bits = static_cast<unsigned>(_mm256_movemask_ps(in)); bits != 0; bits &= bits - 1)
      to[count++] = static_cast<int32_t>(i + __builtin_ctz(bits));
  }
  return count;
}

// What is stored behind the last of `to` is no further than what was read of x.
DHLO_AVX512 int64_t select_avx512(const float* x, int64_t n, float least, float below, int32_t* to) {
  int64_t count = 0;
  const __m512 low = _mm512_set1_ps(least), high = _mm512_set1_ps(below);
  __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int64_t i = 0; i < n; i += kLanes) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __mmask16 in = _mm512_cmp_ps_mask(v, high, _CMP_LT_OQ) & _mm512_cmp_ps_mask(v, low, _CMP_GE_OQ);
    _mm512_storeu_si512(to + count, _mm512_maskz_compress_epi32(in, places));
    count += __builtin_popcount(in);
    places = _mm512_add_epi32(places, _mm512_set1_epi32(kLanes));
  }
  return count;
}
#endif

#define DHLO_LANES(name, target, select)                                                                 \
  namespace name {                                                                                       \
  target Peak peak(const float* x, int64_t n) { return peak_of(x, n); }                                  \
  target int64_t maxima(const float* x, int64_t n, float* to) { return maxima_of(x, n, to); }            \
  target void weights(const float* x, int64_t n, float peak, float temperature, float* w, float* sums) { \
    weights_of(x, n, peak, temperature, w, sums);                                                        \
  }                                                                                                      \
  target void masses(const float* x, const float* w, int64_t n, const float* least, double* masses) {    \
    masses_of(x, w, n, least, masses);                                                                   \
  }                                                                                                      \
  target int64_t drop(const float* x, int64_t n, float least, float* w, float* sums) {                   \
    return drop_of(x, n, least, w, sums);                                                                \
  }                                                                                                      \
  target void widen_bf16(const uint16_t* from, int64_t n, float* to) { widen_bf16_of(from, n, to); }     \
  target void widen_f16(const uint16_t* from, int64_t n, float* to) { widen_f16_of(from, n, to); }       \
  const Lanes all{peak, maxima, weights, masses, select, drop, widen_bf16, widen_f16};                   \
  }

DHLO_LANES(baseline, , select_of)
#if defined(__x86_64__)
DHLO_LANES(avx2, DHLO_AVX2, select_avx2)
DHLO_LANES(avx512, DHLO_AVX512, select_avx512)
#endif
#undef DHLO_LANES
#undef DHLO_AVX2
#undef DHLO_AVX512

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
