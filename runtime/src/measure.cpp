// Timing of instructions, caches, prefetches and the pool: short loops, each the shortest of some turns.
#include "measure.hpp"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "cpu.hpp"
#include "pool.hpp"

namespace dhlo {
namespace {

constexpr int64_t kBudget = 4'700'000;  // ns for all but the wake-up
constexpr int64_t kTurns = 5;
constexpr int64_t kRow = 128;  // bytes of B that a step of k reads: a panel's row of f32

// To the ranges that facts have; 0 stands for what there isn't.
void clamp(Facts* facts) {
  for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i) {
    int64_t& fact = (*facts)[static_cast<size_t>(i)];
    const FactInfo& info = fact_info(i);
    if (info.measured && fact != 0) fact = std::clamp(fact, info.least, info.most);
  }
}

// ---- instructions

// Twelve independent chains, enough for two instructions a cycle at a latency of six.
#if defined(__x86_64__)
#define DHLO_CHAIN(instruction, r, n) instruction " %%" r "12, %%" r "13, %%" r #n "\n"
#elif defined(__aarch64__)
#define DHLO_CHAIN(instruction, r, n) instruction " v" #n "." r ", v12." r ", v13." r "\n"
#endif
#define DHLO_FOUR(i, r, a, b, c, d) DHLO_CHAIN(i, r, a) DHLO_CHAIN(i, r, b) DHLO_CHAIN(i, r, c) DHLO_CHAIN(i, r, d)
#define DHLO_TWELVE(i, r) DHLO_FOUR(i, r, 0, 1, 2, 3) DHLO_FOUR(i, r, 4, 5, 6, 7) DHLO_FOUR(i, r, 8, 9, 10, 11)
constexpr int64_t kChains = 12;

#if defined(__x86_64__)
#define DHLO_TIMED(name, instruction, r)                                                                          \
  int64_t name(int64_t rounds) {                                                                                  \
    const int64_t start = nanoseconds();                                                                          \
    __asm__ volatile(                                                                                             \
        "vpxor %%xmm12, %%xmm12, %%xmm12\nvpxor %%xmm13, %%xmm13, %%xmm13\n"                                      \
        "1:\n" DHLO_TWELVE(instruction, r) "dec %0\njnz 1b\nvzeroupper\n"                                         \
        : "+r"(rounds)                                                                                            \
        :                                                                                                         \
        : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
          "xmm12", "xmm13");                                                                                      \
    return nanoseconds() - start;                                                                                 \
  }
DHLO_TIMED(time_fma256, "vfmadd231ps", "ymm")
DHLO_TIMED(time_fma512, "vfmadd231ps", "zmm")
DHLO_TIMED(time_bf16_dot, "vdpbf16ps", "zmm")

// Products of whole tiles, of bytes: on all processors known those of bf16 take as long. Four chains cover their
// latency (52 cycles to 16, Intel's optimisation manual, 20.5).
constexpr int64_t kTileChains = 4, kTileProducts = 16 * 16 * 32;  // of bf16 in an instruction
// Measured so many times, at most, while they are slower than this, in percent.
constexpr int64_t kTileTurns = 4, kTilesAreFast = 800;
int64_t time_tiles(int64_t rounds) {
  struct alignas(64) {
    uint8_t palette = 1, zeros[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  } config;
  static_assert(sizeof config == 64, "what ldtilecfg reads");
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
  const int64_t start = nanoseconds();
  __asm__ volatile(
      "1:\ntdpbssd %%tmm5, %%tmm4, %%tmm0\ntdpbssd %%tmm5, %%tmm4, %%tmm1\n"
      "tdpbssd %%tmm5, %%tmm4, %%tmm2\ntdpbssd %%tmm5, %%tmm4, %%tmm3\ndec %0\njnz 1b\n"
      : "+r"(rounds)
      :
      : "cc");
  const int64_t end = nanoseconds();
  __asm__ volatile("tilerelease");
  return end - start;
}
#elif defined(__aarch64__)
int64_t time_fma128(int64_t rounds) {
  const int64_t start = nanoseconds();
  __asm__ volatile("movi v12.4s, #0\nmovi v13.4s, #0\n1:\n" DHLO_TWELVE("fmla", "4s") "subs %0, %0, #1\nb.ne 1b\n"
                   : "+r"(rounds)
                   :
                   : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13");
  return nanoseconds() - start;
}
#endif

// Instructions in a microsecond, from the shortest turn, of so many chains; the first turns warm up.
[[maybe_unused]] int64_t rate(int64_t (*time)(int64_t), int64_t chains = kChains) {
  constexpr int64_t kRounds = 1000;
  int64_t shortest = INT64_MAX;
  for (int64_t turn = 0; turn < 10; ++turn) shortest = std::min(shortest, time(kRounds));
  return 1000 * kRounds * chains / std::max<int64_t>(shortest, 1);
}

// What an instruction of bf16 dot products multiplies where one of f32 multiplies 100: rates of instructions are small
// ratios, so that the nearest of 25, 50, 100, 200 ... is the same in every measurement, and with it what products sum.
[[maybe_unused]] int64_t nearest_ratio(int64_t percent, int64_t most) {
  int64_t ratio = 25;
  while (percent * percent > 2 * ratio * ratio && ratio < most) ratio *= 2;
  return ratio;
}

void measure_instructions(Facts* facts) {
#if defined(__x86_64__)
  Facts& f = *facts;
  if (cpu_supports("fma")) f[DHLO_MACHINE_FMA256_PER_US] = f[DHLO_MACHINE_FMA128_PER_US] = rate(time_fma256);
  if (cpu_supports("avx512f")) f[DHLO_MACHINE_FMA512_PER_US] = rate(time_fma512);
  const int64_t fma = std::max<int64_t>(f[DHLO_MACHINE_FMA512_PER_US], 1);
  if (cpu_supports("avx512f") && cpu_supports("avx512bf16"))
    f[DHLO_MACHINE_BF16_PERCENT] = nearest_ratio(200 * rate(time_bf16_dot) / fma, 800);
  if (cpu_supports("avx512f") && cpu_supports("amx-int8")) {
    // Some cores take tiles at a third of their rate for milliseconds now and then: not in all of these, mostly.
    int64_t best = 0;
    for (int64_t turn = 0; turn < kTileTurns && best < kTilesAreFast; ++turn)
      best = std::max(best, 100 * rate(time_tiles, kTileChains) * (kTileProducts / 16) / fma);
    f[DHLO_MACHINE_TILES_PERCENT] = nearest_ratio(best, 12'800);
  }
#elif defined(__aarch64__)
  (*facts)[DHLO_MACHINE_FMA128_PER_US] = rate(time_fma128);
#else
  static_cast<void>(facts);
#endif
}

// ---- streams

using Line = float __attribute__((vector_size(64)));

// Reads `bytes` as a product of Rows rows reads a panel of B, with prefetches to the first cache `ahead` bytes on, as
// micro-kernels have it (codegen/families/gemm/microkernel.py).
#define DHLO_STREAM(name, attributes)                                                          \
  template <int Rows>                                                                          \
  attributes void name(const char* data, int64_t bytes, int64_t ahead, const float* factors) { \
    Line sums[Rows][2] = {};                                                                   \
    for (int64_t at = 0; at < bytes; at += kRow) {                                             \
      __builtin_prefetch(data + at + ahead, 0, 3);                                             \
      __builtin_prefetch(data + at + ahead + 64, 0, 3);                                        \
      const Line* row = reinterpret_cast<const Line*>(data + at);                              \
      const float* factor = factors + at / kRow % 256 * Rows;                                  \
      for (int r = 0; r < Rows; ++r) {                                                         \
        sums[r][0] += factor[r] * row[0];                                                      \
        sums[r][1] += factor[r] * row[1];                                                      \
      }                                                                                        \
    }                                                                                          \
    for (int r = 0; r < Rows; ++r) __asm__ volatile("" : : "m"(sums[r]));                      \
  }
#if defined(__x86_64__)
DHLO_STREAM(stream512, __attribute__((target("avx512f,fma"))))
DHLO_STREAM(stream256, __attribute__((target("avx2,fma"))))
#endif
DHLO_STREAM(stream128, )

using Stream = void (*)(const char*, int64_t, int64_t, const float*);

template <int Rows>
Stream stream_of() {
#if defined(__x86_64__)
  if (cpu_supports("avx512f")) return stream512<Rows>;
  if (cpu_supports("avx2") && cpu_supports("fma")) return stream256<Rows>;
#endif
  return stream128<Rows>;
}

// Moves a range from the caches to memory.
bool flush(const char* data, int64_t bytes) {
#if defined(__x86_64__)
  // Each `clflush` waits for the one before, a tenth of a microsecond on Intel's servers.
  static const bool unordered = cpu_supports("clflushopt");
  if (unordered) {
    for (int64_t at = 0; at < bytes; at += 64) __asm__ volatile("clflushopt %0" : : "m"(data[at]) : "memory");
  } else {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_ia32_clflush(data + at);
  }
  __builtin_ia32_mfence();
  return true;
#elif defined(__aarch64__)
  for (int64_t at = 0; at < bytes; at += 64) __asm__ volatile("dc civac, %0" : : "r"(data + at) : "memory");
  __asm__ volatile("dsb sy" : : : "memory");
  return true;
#else
  static_cast<void>(data), static_cast<void>(bytes);
  return false;
#endif
}

// The two shortest of some turns.
struct Shortest {
  int64_t first = INT64_MAX, second = INT64_MAX;
  void add(int64_t time) {
    second = std::min(second, std::max(first, time));
    first = std::min(first, time);
  }
  // Whether they agree, so that a third would.
  bool steady() const { return second - first <= first / 8; }
};

// Memory of its own for the streams.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  const char* data() const { return data_ != MAP_FAILED ? static_cast<const char*>(data_) : nullptr; }

 private:
  size_t bytes_;
  void* data_;
};

class Streams {
 public:
  Streams(Facts* facts, int64_t deadline) : facts_(*facts), deadline_(deadline) {
    const int64_t l2 = facts_[DHLO_MACHINE_L2_BYTES];
    l3_piece_ = l2 <= kLargestL2 ? std::max(l2 * 3 / 2, kPiece) : 0;
    l2_piece_ = std::min(l2 / 2, kPiece) / kRow * kRow;
  }

  // Returns whether everything was found.
  bool measure() {
    const Buffer buffer(std::max(l3_piece_, kPiece) + kFurthest);
    data_ = buffer.data();
    if (data_ == nullptr) return false;
    bool ok = bandwidth(DHLO_MACHINE_L2_BYTES_PER_US, l2_piece_, false);
    // Read again and again, what the second cache doesn't hold comes from the third.
    if (facts_[DHLO_MACHINE_L3_BYTES] > 0 && l3_piece_ > 0)
      ok = bandwidth(DHLO_MACHINE_L3_BYTES_PER_US, l3_piece_, false) && ok;
    ok = bandwidth(DHLO_MACHINE_MEMORY_BYTES_PER_US, kPiece, true) && ok;
    ok = distance(DHLO_MACHINE_AHEAD_ONE, stream_of<1>()) && ok;
    ok = distance(DHLO_MACHINE_AHEAD_FEW, stream_of<4>()) && ok;
    return distance(DHLO_MACHINE_AHEAD_MORE, stream_of<8>()) && ok;
  }

 private:
  static constexpr int64_t kPiece = 384 << 10, kLargestL2 = 2 << 20, kFurthest = 16 << 10;
  static constexpr int64_t kDistances[] = {1024, 2048, 4096, 8192, 12288};
  // A distance is taken for the nominal one where it is faster by one part in so many.
  static constexpr int64_t kBetter = 16;

  int64_t time(Stream stream, int64_t bytes, int64_t ahead) const {
    const int64_t start = nanoseconds();
    stream(data_, bytes, ahead, factors_);
    return std::max<int64_t>(nanoseconds() - start, 1);
  }

  bool bandwidth(int fact, int64_t bytes, bool from_memory) {
    const Stream stream = stream_of<1>();
    Shortest shortest;
    // The first brings it there. Memory has more turns where the shortest two of all don't agree yet.
    const int64_t most = from_memory ? 4 * kTurns : kTurns;
    for (int64_t turn = -1; turn < kTurns || (turn < most && !shortest.steady()); ++turn) {
      if (nanoseconds() > deadline_) return false;
      if (from_memory && !flush(data_, bytes + kFurthest)) return false;
      const int64_t took = time(stream, bytes, facts_[DHLO_MACHINE_AHEAD_ONE]);
      if (turn >= 0) shortest.add(took);
    }
    if (!shortest.steady()) return false;
    facts_[fact] = bytes * 1000 / shortest.first;
    return true;
  }

  // How far ahead a stream from memory is prefetched best: the nominal distance, unless another one is faster in every
  // turn, and again when the two are compared once more. Other work on the machine can make turns slow, but not always
  // those of the same distance.
  bool distance(int fact, Stream stream) {
    constexpr size_t kCount = sizeof kDistances / sizeof *kDistances;
    int64_t candidates[kCount + 1] = {facts_[fact]};
    std::copy(std::begin(kDistances), std::end(kDistances), candidates + 1);
    const int64_t found = fastest(stream, candidates, kCount + 1);
    if (found < 0) return false;
    const int64_t two[] = {facts_[fact], found};
    if (found != facts_[fact] && fastest(stream, two, 2) == found) facts_[fact] = found;
    return true;
  }

  // Of some distances the one that is faster than the first in every turn, by the most; the first if there is none.
  // Negative if time ran out.
  int64_t fastest(Stream stream, const int64_t* candidates, size_t count) {
    constexpr size_t kMost = 8;
    int64_t sums[kMost] = {};
    bool always[kMost];  // those that still may be it; the others take no more turns
    for (size_t i = 0; i < count; ++i) always[i] = i == 0 || candidates[i] != candidates[0];
    for (int64_t turn = 0; turn < kTurns && std::count(always, always + count, true) > 1; ++turn) {
      int64_t nominal = 0;
      for (size_t i = 0; i < count; ++i) {
        if (!always[i]) continue;
        if (nanoseconds() > deadline_ || !flush(data_, kPiece + kFurthest)) return -1;
        const int64_t took = time(stream, kPiece, candidates[i]);
        if (i == 0) nominal = took;
        sums[i] += took;
        always[i] = i == 0 || took < nominal - nominal / kBetter;
      }
    }
    size_t best = 0;
    for (size_t i = 1; i < count; ++i)
      if (always[i] && sums[i] < sums[best]) best = i;
    return candidates[best];
  }

  Facts& facts_;
  const int64_t deadline_;
  int64_t l2_piece_, l3_piece_;
  const char* data_ = nullptr;
  float factors_[256 * 8] = {};
};

// ---- the pool

struct Handoff {
  std::atomic<int64_t> arrived{0};
  int64_t patience;
};

// The caller's own chunk waits until another thread has begun the other one.
void wait_or_arrive(const int64_t* args, int64_t begin, int64_t, int64_t worker, void*) {
  Handoff& handoff = *reinterpret_cast<Handoff*>(args[0]);
  if (worker != 0) {
    handoff.arrived.store(nanoseconds());
    return;
  }
  if (begin != 0) return;
  const int64_t end = nanoseconds() + handoff.patience;
  while (handoff.arrived.load() == 0 && nanoseconds() < end) {
  }
}

}  // namespace

int64_t nanoseconds() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

bool measure_core(Facts* facts) noexcept {
  const int64_t deadline = nanoseconds() + kBudget;
  measure_instructions(facts);
  const bool ok = Streams(facts, deadline).measure();
  clamp(facts);
  return ok;
}

bool measure_wake(Pool* pool, int64_t* result) noexcept {
  constexpr int64_t kStart = 2'000'000, kPatience = 20'000, kWanted = 15, kMost = 40;
  Handoff handoff;
  const int64_t args[] = {reinterpret_cast<int64_t>(&handoff)};
  const Launch launch{wait_or_arrive, args, 2, 2, nullptr, 0};
  int64_t times[kMost], found = 0;
  const int64_t end = nanoseconds() + kStart;
  // The first launches start the threads.
  for (int64_t turn = 0; turn < kMost && found < kWanted && nanoseconds() < end; ++turn) {
    handoff.arrived.store(0);
    handoff.patience = turn == 0 ? kStart / 2 : kPatience;
    const int64_t start = nanoseconds();
    if (!pool->run(launch)) return false;
    if (turn > 0 && handoff.arrived.load() != 0) times[found++] = nanoseconds() - start;
  }
  if (found < kWanted) return false;
  std::nth_element(times, times + found / 2, times + found);
  *result = times[found / 2];
  return true;
}

}  // namespace dhlo
