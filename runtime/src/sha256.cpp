// SHA-256 (FIPS 180-4) in portable code and with the SHA instructions of x86 and ARM; the runtime links no crypto
// library.
#include "sha256.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "cpu.hpp"
#include "dhlo/abi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace dhlo {
namespace {

constexpr size_t kBlock = 64;
constexpr int64_t kMaxThreads = 8;  // more read no faster

constexpr uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

uint32_t rotate(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

uint32_t load_big(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void add_blocks_portable(uint32_t* state, const uint8_t* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += kBlock) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = load_big(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; ++i) {
      const uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
      const uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t sum[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += sum[i];
  }
}

#if defined(__x86_64__)
// Intel's SHA extensions: two registers hold a state as ABEF and CDGH, four the last sixteen words of the schedule. The
// instructions wait for each other's results, so two messages at once take little longer than one.
template <int Streams>
__attribute__((target("sha,sse4.1,ssse3"))) void add_blocks_native(uint32_t* const* states, const uint8_t* const* data,
                                                                   size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  __m128i abef[Streams], cdgh[Streams];
  for (int s = 0; s < Streams; ++s) {
    const auto* words = reinterpret_cast<const __m128i*>(states[s]);
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
    abef[s] = _mm_alignr_epi8(badc, efgh, 8);
    cdgh[s] = _mm_blend_epi16(efgh, badc, 0xf0);
  }
  for (size_t block = 0; block < blocks; ++block) {
    __m128i w[Streams][4], abef_before[Streams], cdgh_before[Streams];
    for (int s = 0; s < Streams; ++s) {
      abef_before[s] = abef[s], cdgh_before[s] = cdgh[s];
      const auto* words = reinterpret_cast<const __m128i*>(data[s] + block * kBlock);
      for (int i = 0; i < 4; ++i) w[s][i] = _mm_shuffle_epi8(_mm_loadu_si128(words + i), swap);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound) + i);
#pragma GCC unroll 2
      for (int s = 0; s < Streams; ++s) {
        const __m128i now = w[s][i & 3], sum = _mm_add_epi32(now, k);
        cdgh[s] = _mm_sha256rnds2_epu32(cdgh[s], abef[s], sum);
        abef[s] = _mm_sha256rnds2_epu32(abef[s], cdgh[s], _mm_shuffle_epi32(sum, 0x0e));
        if (i >= 12) continue;
        // The four words that take the place of `now`: W[t] = s1(W[t-2]) + W[t-7] + s0(W[t-15]) + W[t-16].
        const __m128i last = w[s][(i + 3) & 3], seventh = _mm_alignr_epi8(last, w[s][(i + 2) & 3], 4);
        const __m128i rest = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[s][(i + 1) & 3]), seventh);
        w[s][i & 3] = _mm_sha256msg2_epu32(rest, last);
      }
    }
    for (int s = 0; s < Streams; ++s) {
      abef[s] = _mm_add_epi32(abef[s], abef_before[s]);
      cdgh[s] = _mm_add_epi32(cdgh[s], cdgh_before[s]);
    }
  }
  for (int s = 0; s < Streams; ++s) {
    auto* words = reinterpret_cast<__m128i*>(states[s]);
    const __m128i feba = _mm_shuffle_epi32(abef[s], 0x1b), dchg = _mm_shuffle_epi32(cdgh[s], 0xb1);
    _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
}

bool has_native() {
  static const bool yes = cpu_supports("sha") && cpu_supports("sse4.1") && cpu_supports("ssse3");
  return yes;
}
#elif defined(__aarch64__)
// ARMv8's SHA-256 extension: a register holds ABCD, one EFGH, four the last sixteen words of the schedule.
template <int Streams>
__attribute__((target("+crypto"))) void add_blocks_native(uint32_t* const* states, const uint8_t* const* data,
                                                          size_t blocks) {
  uint32x4_t abcd[Streams], efgh[Streams];
  for (int s = 0; s < Streams; ++s) {
    abcd[s] = vld1q_u32(states[s]);
    efgh[s] = vld1q_u32(states[s] + 4);
  }
  for (size_t block = 0; block < blocks; ++block) {
    uint32x4_t w[Streams][4], abcd_before[Streams], efgh_before[Streams];
    for (int s = 0; s < Streams; ++s) {
      abcd_before[s] = abcd[s], efgh_before[s] = efgh[s];
      for (int i = 0; i < 4; ++i)
        w[s][i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data[s] + block * kBlock + 16 * static_cast<size_t>(i))));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const uint32x4_t k = vld1q_u32(kRound + 4 * i);
#pragma GCC unroll 2
      for (int s = 0; s < Streams; ++s) {
        const uint32x4_t now = w[s][i & 3], sum = vaddq_u32(now, k), before = abcd[s];
        abcd[s] = vsha256hq_u32(before, efgh[s], sum);
        efgh[s] = vsha256h2q_u32(efgh[s], before, sum);
        if (i >= 12) continue;
        w[s][i & 3] = vsha256su1q_u32(vsha256su0q_u32(now, w[s][(i + 1) & 3]), w[s][(i + 2) & 3], w[s][(i + 3) & 3]);
      }
    }
    for (int s = 0; s < Streams; ++s) {
      abcd[s] = vaddq_u32(abcd[s], abcd_before[s]);
      efgh[s] = vaddq_u32(efgh[s], efgh_before[s]);
    }
  }
  for (int s = 0; s < Streams; ++s) {
    vst1q_u32(states[s], abcd[s]);
    vst1q_u32(states[s] + 4, efgh[s]);
  }
}

bool has_native() {
  static const bool yes = cpu_supports("sha2");
  return yes;
}
#else
template <int Streams>
void add_blocks_native(uint32_t* const*, const uint8_t* const*, size_t) {}
bool has_native() { return false; }
#endif

// Messages of one length, `Streams` at once where the processor has instructions for it.
template <int Streams>
void hash(const uint8_t* const* data, size_t bytes, bool portable, Digest* out) noexcept {
  uint32_t words[Streams][8];
  uint8_t tails[Streams][2 * kBlock] = {};
  uint32_t* states[Streams];
  const uint8_t* ends[Streams];
  const size_t whole = bytes / kBlock, rest = bytes % kBlock;
  // What is left, a one bit, zeros, and the number of bits in the last eight bytes.
  const size_t tail_bytes = rest + 9 <= kBlock ? kBlock : 2 * kBlock;
  const uint64_t bits = uint64_t{bytes} * 8;
  for (int s = 0; s < Streams; ++s) {
    std::memcpy(words[s], kInitial, sizeof kInitial);
    if (rest > 0) std::memcpy(tails[s], data[s] + whole * kBlock, rest);
    tails[s][rest] = 0x80;
    for (size_t i = 0; i < 8; ++i) tails[s][tail_bytes - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
    states[s] = words[s];
    ends[s] = tails[s];
  }
  if (!portable && has_native()) {
    add_blocks_native<Streams>(states, data, whole);
    add_blocks_native<Streams>(states, ends, tail_bytes / kBlock);
  } else {
    for (int s = 0; s < Streams; ++s) {
      add_blocks_portable(states[s], data[s], whole);
      add_blocks_portable(states[s], ends[s], tail_bytes / kBlock);
    }
  }
  for (int s = 0; s < Streams; ++s)
    for (size_t i = 0; i < out[s].size(); ++i) out[s][i] = static_cast<uint8_t>(words[s][i / 4] >> (24 - 8 * (i % 4)));
}

}  // namespace

Digest sha256(const void* data, size_t bytes, bool portable) noexcept {
  const auto* p = static_cast<const uint8_t*>(data);
  Digest digest;
  hash<1>(&p, bytes, portable, &digest);
  return digest;
}

Digest section_digest(int64_t bytes, int64_t threads, const std::function<const uint8_t*(int64_t, int64_t)>& get) {
  constexpr int64_t kPiece = DHLO_DIGEST_PIECE, kPair = 2 * kPiece;
  std::vector<Digest> digests(static_cast<size_t>((bytes + kPiece - 1) / kPiece));
  in_parallel((bytes + kPair - 1) / kPair, threads, [&](int64_t pair) {
    const int64_t offset = pair * kPair, length = std::min(kPair, bytes - offset);
    const uint8_t* data = get(offset, length);
    Digest* out = &digests[static_cast<size_t>(2 * pair)];
    if (length == kPair) {
      const uint8_t* const pieces[2] = {data, data + kPiece};
      hash<2>(pieces, static_cast<size_t>(kPiece), false, out);
      return;
    }
    const int64_t first = std::min(length, kPiece);
    out[0] = sha256(data, static_cast<size_t>(first));
    if (length > first) out[1] = sha256(data + first, static_cast<size_t>(length - first));
  });
  return sha256(digests.data(), digests.size() * sizeof(Digest));
}

void in_parallel(int64_t tasks, int64_t threads, const std::function<void(int64_t)>& task) {
  std::atomic<int64_t> next{0};
  std::exception_ptr errors[kMaxThreads];
  auto work = [&](int64_t thread) {
    try {
      for (int64_t i = next++; i < tasks; i = next++) task(i);
    } catch (...) {
      errors[thread] = std::current_exception();
      next = tasks;
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<size_t>(kMaxThreads));
    for (int64_t i = 1; i < std::min({threads, tasks, kMaxThreads}); ++i) others.emplace_back(work, i);
  } catch (const std::exception&) {
    // Fewer threads do it.
  }
  work(0);
  for (std::thread& thread : others) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

std::string to_hex(const uint8_t* data, size_t bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text += digits[data[i] >> 4];
    text += digits[data[i] & 15];
  }
  return text;
}

}  // namespace dhlo
