// Which processor features this machine offers, by LLVM's names (X86.td); bits from the CPUID tables of Intel's and
// AMD's manuals.
#include "cpu.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "dhlo/runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dhlo {

#if defined(__x86_64__)
namespace {

enum Register : uint8_t { kEax, kEbx, kEcx, kEdx };
// State that the operating system must save: XCR0 bits for SSE+AVX, opmask+ZMM, AMX tiles.
enum Saved : uint32_t { kNone = 0, kYmm = 0x6, kZmm = 0xe6, kTile = 0x60000 };

struct Feature {
  std::string_view name;
  uint32_t leaf, subleaf;
  Register reg;
  uint8_t bit;
  uint32_t saved;
};

constexpr uint32_t kExt1 = 0x80000001u, kExt8 = 0x80000008u;
constexpr Feature kFeatures[] = {
    {"cx8", 1, 0, kEdx, 8, kNone},
    {"cmov", 1, 0, kEdx, 15, kNone},
    {"mmx", 1, 0, kEdx, 23, kNone},
    {"fxsr", 1, 0, kEdx, 24, kNone},
    {"sse", 1, 0, kEdx, 25, kNone},
    {"sse2", 1, 0, kEdx, 26, kNone},
    {"sse3", 1, 0, kEcx, 0, kNone},
    {"pclmul", 1, 0, kEcx, 1, kNone},
    {"ssse3", 1, 0, kEcx, 9, kNone},
    {"fma", 1, 0, kEcx, 12, kYmm},
    {"cx16", 1, 0, kEcx, 13, kNone},
    {"sse4.1", 1, 0, kEcx, 19, kNone},
    {"sse4.2", 1, 0, kEcx, 20, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"aes", 1, 0, kEcx, 25, kNone},
    {"xsave", 1, 0, kEcx, 26, kNone},
    {"avx", 1, 0, kEcx, 28, kYmm},
    {"f16c", 1, 0, kEcx, 29, kYmm},
    {"rdrnd", 1, 0, kEcx, 30, kNone},
    {"crc32", 1, 0, kEcx, 20, kNone},
    {"fsgsbase", 7, 0, kEbx, 0, kNone},
    {"bmi", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kYmm},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"invpcid", 7, 0, kEbx, 10, kNone},
    {"avx512f", 7, 0, kEbx, 16, kZmm},
    {"avx512dq", 7, 0, kEbx, 17, kZmm},
    {"rdseed", 7, 0, kEbx, 18, kNone},
    {"adx", 7, 0, kEbx, 19, kNone},
    {"avx512ifma", 7, 0, kEbx, 21, kZmm},
    {"clflushopt", 7, 0, kEbx, 23, kNone},
    {"clwb", 7, 0, kEbx, 24, kNone},
    {"avx512cd", 7, 0, kEbx, 28, kZmm},
    {"sha", 7, 0, kEbx, 29, kNone},
    {"avx512bw", 7, 0, kEbx, 30, kZmm},
    {"avx512vl", 7, 0, kEbx, 31, kZmm},
    {"avx512vbmi", 7, 0, kEcx, 1, kZmm},
    {"avx512vbmi2", 7, 0, kEcx, 6, kZmm},
    {"gfni", 7, 0, kEcx, 8, kNone},
    {"vaes", 7, 0, kEcx, 9, kYmm},
    {"vpclmulqdq", 7, 0, kEcx, 10, kYmm},
    {"avx512vnni", 7, 0, kEcx, 11, kZmm},
    {"avx512bitalg", 7, 0, kEcx, 12, kZmm},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kZmm},
    {"rdpid", 7, 0, kEcx, 22, kNone},
    {"movdiri", 7, 0, kEcx, 27, kNone},
    {"movdir64b", 7, 0, kEcx, 28, kNone},
    {"avx512vp2intersect", 7, 0, kEdx, 8, kZmm},
    {"serialize", 7, 0, kEdx, 14, kNone},
    {"amx-bf16", 7, 0, kEdx, 22, kTile},
    {"avx512fp16", 7, 0, kEdx, 23, kZmm},
    {"amx-tile", 7, 0, kEdx, 24, kTile},
    {"amx-int8", 7, 0, kEdx, 25, kTile},
    {"sha512", 7, 1, kEax, 0, kYmm},
    {"avxvnni", 7, 1, kEax, 4, kYmm},
    {"avx512bf16", 7, 1, kEax, 5, kZmm},
    {"amx-fp16", 7, 1, kEax, 21, kTile},
    {"avxifma", 7, 1, kEax, 23, kYmm},
    {"avxvnniint8", 7, 1, kEdx, 4, kYmm},
    {"avxneconvert", 7, 1, kEdx, 5, kYmm},
    {"avxvnniint16", 7, 1, kEdx, 10, kYmm},
    {"xsaveopt", 13, 1, kEax, 0, kNone},
    {"xsavec", 13, 1, kEax, 1, kNone},
    {"xsaves", 13, 1, kEax, 3, kNone},
    {"sahf", kExt1, 0, kEcx, 0, kNone},
    {"lzcnt", kExt1, 0, kEcx, 5, kNone},
    {"sse4a", kExt1, 0, kEcx, 6, kNone},
    {"prfchw", kExt1, 0, kEcx, 8, kNone},
    {"mwaitx", kExt1, 0, kEcx, 29, kNone},
    {"64bit", kExt1, 0, kEdx, 29, kNone},
    {"clzero", kExt8, 0, kEbx, 0, kNone},
    {"wbnoinvd", kExt8, 0, kEbx, 9, kNone},
};

uint32_t saved_by_system() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & (1u << 27)) == 0) return 0;  // OSXSAVE
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool has(const Feature& feature) {
  uint32_t regs[4] = {0, 0, 0, 0};
  if (__get_cpuid_count(feature.leaf, feature.subleaf, &regs[0], &regs[1], &regs[2], &regs[3]) == 0) return false;
  if ((regs[feature.reg] >> feature.bit & 1u) == 0) return false;
  return feature.saved == kNone || (saved_by_system() & feature.saved) == feature.saved;
}

}  // namespace

bool cpu_supports(std::string_view name) noexcept {
  for (const Feature& feature : kFeatures)
    if (feature.name == name) return has(feature);
  return false;
}
#else
// No table for this architecture yet: a model that names features is refused rather than trusted.
bool cpu_supports(std::string_view) noexcept { return false; }
#endif

int64_t l2_cache_bytes() noexcept {
  constexpr int64_t kUsual = 1 << 20, kLeast = 128 << 10, kMost = 64 << 20;
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return std::clamp(bytes, kLeast, kMost);
#endif
  return kUsual;
}

std::string missing_cpu_features(std::string_view features) {
  std::string missing;
  while (!features.empty()) {
    const size_t comma = features.find(',');
    std::string_view name = features.substr(0, comma);
    features = comma == std::string_view::npos ? std::string_view() : features.substr(comma + 1);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (name.empty() || cpu_supports(name)) continue;
    if (!missing.empty()) missing += ", ";
    missing += name;
  }
  return missing;
}

}  // namespace dhlo

int32_t dhlo_cpu_supports(const char* feature) { return feature != nullptr && dhlo::cpu_supports(feature) ? 1 : 0; }
