// What the machine is like beyond its instructions: caches from the system, rates of instructions by timing them.
#include "machine.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "cpu.hpp"
#include "dhlo/abi.h"

namespace dhlo {
namespace {

using Facts = std::array<int64_t, DHLO_MACHINE_FIELDS>;

// The first line of a small file; empty if it can't be read.
std::array<char, 256> first_line(const char* path) {
  std::array<char, 256> line{};
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return line;
  if (std::fgets(line.data(), static_cast<int>(line.size()), file) == nullptr) line[0] = 0;
  std::fclose(file);
  return line;
}

// Bytes of cache `index` of the first processor as Linux lists them, or `otherwise`. `sysconf` knows them on x86 alone.
int64_t cache_bytes(int index, int64_t otherwise) {
  char path[96];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
  const std::array<char, 256> text = first_line(path);
  char* unit = nullptr;
  const int64_t number = std::strtoll(text.data(), &unit, 10);
  if (number <= 0 || number > int64_t{1} << 40) return otherwise;
  return number << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
}

// How many processors a list such as "0-3,8,10-11" names.
int64_t count_listed(const char* list) {
  int64_t count = 0;
  while (std::isdigit(static_cast<unsigned char>(*list)) != 0) {
    char* end = nullptr;
    const int64_t first = std::strtoll(list, &end, 10);
    int64_t last = first;
    if (*end == '-') last = std::strtoll(end + 1, &end, 10);
    count += std::clamp<int64_t>(last - first + 1, 1, 1024);
    list = *end == ',' ? end + 1 : end;
  }
  return count;
}

#if defined(__x86_64__)
int64_t nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

// Twelve independent chains, enough for two instructions a cycle at a latency of six.
#define DHLO_TWELVE(instruction)                                                                  \
  instruction " %%zmm12, %%zmm13, %%zmm0\n" instruction " %%zmm12, %%zmm13, %%zmm1\n" instruction \
              " %%zmm12, %%zmm13, %%zmm2\n" instruction " %%zmm12, %%zmm13, %%zmm3\n" instruction \
              " %%zmm12, %%zmm13, %%zmm4\n" instruction " %%zmm12, %%zmm13, %%zmm5\n" instruction \
              " %%zmm12, %%zmm13, %%zmm6\n" instruction " %%zmm12, %%zmm13, %%zmm7\n" instruction \
              " %%zmm12, %%zmm13, %%zmm8\n" instruction " %%zmm12, %%zmm13, %%zmm9\n" instruction \
              " %%zmm12, %%zmm13, %%zmm10\n" instruction " %%zmm12, %%zmm13, %%zmm11\n"
#define DHLO_TIMED(name, instruction)                                                                             \
  int64_t name(int64_t rounds) {                                                                                  \
    const int64_t start = nanoseconds();                                                                          \
    __asm__ volatile(                                                                                             \
        "vpxor %%xmm12, %%xmm12, %%xmm12\nvpxor %%xmm13, %%xmm13, %%xmm13\n"                                      \
        "1:\n" DHLO_TWELVE(instruction) "dec %0\njnz 1b\nvzeroupper\n"                                            \
        : "+r"(rounds)                                                                                            \
        :                                                                                                         \
        : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
          "xmm12", "xmm13");                                                                                      \
    return nanoseconds() - start;                                                                                 \
  }
DHLO_TIMED(time_fma, "vfmadd231ps")
DHLO_TIMED(time_bf16_dot, "vdpbf16ps")
#undef DHLO_TIMED
#undef DHLO_TWELVE

// Shortest of several turns, in which other programs on the machine disturbed least; the first ones warm up.
int64_t bf16_percent() {
  if (!cpu_supports("avx512f") || !cpu_supports("avx512bf16")) return 0;
  constexpr int64_t kRounds = 1000, kTurns = 12;
  int64_t fma = INT64_MAX, dot = INT64_MAX;
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    fma = std::min(fma, time_fma(kRounds));
    dot = std::min(dot, time_bf16_dot(kRounds));
  }
  return std::clamp<int64_t>(200 * fma / std::max<int64_t>(dot, 1), 1, 1000);  // an instruction has twice the products
}
#else
int64_t bf16_percent() { return cpu_supports("bf16") ? 200 : 0; }
#endif

Facts find_out() {
  Facts facts{};
  facts[DHLO_MACHINE_L1D_BYTES] = std::clamp<int64_t>(cache_bytes(0, 32 << 10), 8 << 10, 1 << 20);
  facts[DHLO_MACHINE_L2_BYTES] = l2_cache_bytes();
  facts[DHLO_MACHINE_L3_BYTES] = std::clamp<int64_t>(cache_bytes(3, 0), 0, int64_t{4} << 30);
  facts[DHLO_MACHINE_L3_CORES] = std::clamp<int64_t>(
      count_listed(first_line("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list").data()), 1, 1024);
  facts[DHLO_MACHINE_BF16_PERCENT] = bf16_percent();
  return facts;
}

}  // namespace

const int64_t* machine_facts() noexcept {
  static const Facts facts = find_out();
  return facts.data();
}

}  // namespace dhlo
