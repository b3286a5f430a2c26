// Loops over rows of logits. Each is written once, over as many of the target's vectors as hold kLanes numbers, and
// inlined into a function for each instruction set. (Compilers take apart vectors that a target doesn't have, number by
// number.) Sums are the same on all: each of the kLanes has its own.
#include "lanes.hpp"

#include <cstring>
#include <limits>

#include "dhlo/runtime.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dhlo::serve {
namespace {

// Of W numbers, by what the target's vectors hold. (GCC takes no dependent sizes of vectors of integers.)
template <int64_t W>
struct Vectors;
#define DHLO_VECTORS(W)                                            \
  template <>                                                      \
  struct Vectors<W> {                                              \
    using Floats = float __attribute__((vector_size(4 * (W))));    \
    using Ints = int32_t __attribute__((vector_size(4 * (W))));    \
    using Halves = uint16_t __attribute__((vector_size(2 * (W)))); \
  };
DHLO_VECTORS(4)
DHLO_VECTORS(8)
DHLO_VECTORS(16)
#undef DHLO_VECTORS
template <int64_t W>
using Floats = typename Vectors<W>::Floats;
template <int64_t W>
using Ints = typename Vectors<W>::Ints;

#define DHLO_INLINE inline __attribute__((always_inline))

// Vectors are passed by reference: how they would be passed by value differs between instruction sets.
template <class Vector, class T>
DHLO_INLINE void load(const T* from, Vector& to) {
  std::memcpy(&to, from, sizeof to);
}

template <int64_t W>
DHLO_INLINE float sum_of(const Floats<W>* parts) {
  float sum = 0;
  for (int64_t p = 0; p < kLanes / W; ++p)
    for (int64_t i = 0; i < W; ++i) sum += parts[p][i];
  return sum;
}

template <int64_t W>
DHLO_INLINE Peak peak_of(const float* x, int64_t n) {
  constexpr int64_t P = kLanes / W;
  Floats<W> most[P];
  Ints<W> nan[P]{};
  for (Floats<W>& m : most) m = Floats<W>{} - std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int64_t p = 0; p < P; ++p) {
      Floats<W> v;
      load(x + i + p * W, v);
      nan[p] |= v != v;
      most[p] = v > most[p] ? v : most[p];
    }
  }
  Peak peak{-std::numeric_limits<float>::infinity(), false};
  for (int64_t i = 0; i < kLanes; ++i) {
    peak.nan |= nan[i / W][i % W] != 0;
    if (most[i / W][i % W] > peak.value) peak.value = most[i / W][i % W];
  }
  return peak;
}

template <int64_t W>
DHLO_INLINE int64_t maxima_of(const float* x, int64_t n, float* to) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kPart * kLanes, count += kLanes) {
    const int64_t end = begin + kPart * kLanes < n ? begin + kPart * kLanes : n;
    for (int64_t p = 0; p < kLanes; p += W) {
      Floats<W> most;
      load(x + begin + p, most);
      for (int64_t i = begin + kLanes; i < end; i += kLanes) {
        Floats<W> v;
        load(x + i + p, v);
        most = v > most ? v : most;
      }
      std::memcpy(to + count + p, &most, sizeof most);
    }
  }
  return count;
}

// exp of numbers up to 0, with errors below 2 units of the last place; 0 below -87.3.
template <int64_t W>
DHLO_INLINE void exp_of(Floats<W>& v) {
  const Floats<W> least = Floats<W>{} - 87.3f, round = Floats<W>{} + 12582912.f;  // adding it leaves an integer
  const Ints<W> seen = v >= least;
  const Floats<W> x = seen ? v : least;
  const Floats<W> n = (x * 1.44269504088896341f + round) - round;
  const Floats<W> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats<W> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  const Ints<W> exponent = (__builtin_convertvector(n, Ints<W>) + 127) << 23;
  Floats<W> power;
  std::memcpy(&power, &exponent, sizeof power);
  v = seen ? p * power : Floats<W>{};
}

template <int64_t W>
DHLO_INLINE void weights_of(const float* x, int64_t n, float peak, float temperature, float* w, float* sums) {
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = block + kBlock < n ? block + kBlock : n;
    Floats<W> sum[kLanes / W]{};
    for (int64_t i = block; i < end; i += kLanes) {
      for (int64_t p = 0; p < kLanes / W; ++p) {
        Floats<W> v;
        load(x + i + p * W, v);
        v = (v - peak) / temperature;
        exp_of<W>(v);
        sum[p] += v;
        std::memcpy(w + i + p * W, &v, sizeof v);
      }
    }
    sums[block / kBlock] = sum_of<W>(sum);
  }
}

// Blocks are summed as floats, these as doubles.
template <int64_t W, bool kWeighed>
DHLO_INLINE void masses_by(const float* x, const float* w, int64_t n, const float* least, double* masses) {
  double all[kWays][kLanes]{};
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = block + kBlock < n ? block + kBlock : n;
    for (int64_t p = 0; p < kLanes; p += W) {
      Floats<W> sums[kWays]{};
      for (int64_t i = block + p; i < end; i += kLanes) {
        Floats<W> v, weight = Floats<W>{} + 1.f;
        load(x + i, v);
        if (kWeighed) load(w + i, weight);
        for (int64_t k = 0; k < kWays; ++k) sums[k] += v >= least[k] ? weight : Floats<W>{};
      }
      for (int64_t k = 0; k < kWays; ++k)
        for (int64_t i = 0; i < W; ++i) all[k][p + i] += double{sums[k][i]};
    }
  }
  for (int64_t k = 0; k < kWays; ++k) {
    masses[k] = 0;
    for (int64_t i = 0; i < kLanes; ++i) masses[k] += all[k][i];
  }
}

template <int64_t W>
DHLO_INLINE void masses_of(const float* x, const float* w, int64_t n, const float* least, double* masses) {
  w != nullptr ? masses_by<W, true>(x, w, n, least, masses) : masses_by<W, false>(x, w, n, least, masses);
}

DHLO_INLINE int64_t select_of(const float* x, int64_t n, float least, float below, int32_t* to) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    to[count] = static_cast<int32_t>(i);
    count += static_cast<int64_t>(x[i] >= least) & static_cast<int64_t>(x[i] < below);
  }
  return count;
}

template <int64_t W>
DHLO_INLINE int64_t drop_of(const float* x, int64_t n, float least, float* w, float* sums) {
  int64_t equal = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    const int64_t end = block + kBlock < n ? block + kBlock : n;
    Floats<W> sum[kLanes / W]{};
    Ints<W> count{};
    for (int64_t i = block; i < end; i += kLanes) {
      for (int64_t p = 0; p < kLanes / W; ++p) {
        Floats<W> v, weight;
        load(x + i + p * W, v);
        load(w + i + p * W, weight);
        count -= v == least;
        weight = v >= least ? weight : Floats<W>{};
        sum[p] += weight;
        std::memcpy(w + i + p * W, &weight, sizeof weight);
      }
    }
    sums[block / kBlock] = sum_of<W>(sum);
    for (int64_t i = 0; i < W; ++i) equal += count[i];
  }
  return equal;
}

template <int64_t W>
DHLO_INLINE void widen_bf16_of(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += W) {
    typename Vectors<W>::Halves bits;
    load(from + i, bits);
    const Ints<W> wide = __builtin_convertvector(bits, Ints<W>) << 16;
    std::memcpy(to + i, &wide, sizeof wide);
  }
}

// Exponents are moved by multiplying, which is right for subnormals, too; those of infinities and NaN are set.
template <int64_t W>
DHLO_INLINE void widen_f16_of(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += W) {
    typename Vectors<W>::Halves bits;
    load(from + i, bits);
    const Ints<W> word = __builtin_convertvector(bits, Ints<W>), magnitude = (word & 0x7fff) << 13;
    Floats<W> value;
    std::memcpy(&value, &magnitude, sizeof value);
    value *= 0x1p112f;
    Ints<W> wide;
    std::memcpy(&wide, &value, sizeof wide);
    const Ints<W> special = (word & 0x7c00) == 0x7c00;
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

#define DHLO_LANES(name, target, select, W)                                                              \
  namespace name {                                                                                       \
  target Peak peak(const float* x, int64_t n) { return peak_of<W>(x, n); }                               \
  target int64_t maxima(const float* x, int64_t n, float* to) { return maxima_of<W>(x, n, to); }         \
  target void weights(const float* x, int64_t n, float peak, float temperature, float* w, float* sums) { \
    weights_of<W>(x, n, peak, temperature, w, sums);                                                     \
  }                                                                                                      \
  target void masses(const float* x, const float* w, int64_t n, const float* least, double* masses) {    \
    masses_of<W>(x, w, n, least, masses);                                                                \
  }                                                                                                      \
  target int64_t drop(const float* x, int64_t n, float least, float* w, float* sums) {                   \
    return drop_of<W>(x, n, least, w, sums);                                                             \
  }                                                                                                      \
  target void widen_bf16(const uint16_t* from, int64_t n, float* to) { widen_bf16_of<W>(from, n, to); }  \
  target void widen_f16(const uint16_t* from, int64_t n, float* to) { widen_f16_of<W>(from, n, to); }    \
  const Lanes all{peak, maxima, weights, masses, select, drop, widen_bf16, widen_f16};                   \
  }

DHLO_LANES(baseline, , select_of, 4)
#if defined(__x86_64__)
DHLO_LANES(avx2, DHLO_AVX2, select_avx2, 8)
DHLO_LANES(avx512, DHLO_AVX512, select_avx512, 16)
#endif
#undef DHLO_LANES
#undef DHLO_AVX2
#undef DHLO_AVX512

struct Found {
  const Lanes* lanes[3] = {&baseline::all};
  size_t count = 1;
  Found() {
#if defined(__x86_64__)
    if (dhlo_cpu_supports("avx2") == 0 || dhlo_cpu_supports("fma") == 0) return;
    lanes[count++] = &avx2::all;
    if (dhlo_cpu_supports("avx512f") != 0 && dhlo_cpu_supports("avx512bw") != 0 && dhlo_cpu_supports("avx512dq") != 0 &&
        dhlo_cpu_supports("avx512vl") != 0)
      lanes[count++] = &avx512::all;
#endif
  }
};

}  // namespace

Span<const Lanes* const> all_lanes() {
  static const Found found;
  return {found.lanes, found.count};
}

}  // namespace dhlo::serve
