// Which processor features this machine offers, by LLVM's names (X86.td, AArch64Features.td): bits from the CPUID
// tables of Intel's and AMD's manuals, and from Linux's arm64/elf_hwcaps.
#include "cpu.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "dhlo/runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#elif defined(__aarch64__)
#include <sys/auxv.h>
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

// Linux has processes ask before their first instruction on tiles, whose state is large; once, for all of their threads
// (Documentation/arch/x86/xstate.rst). Asked when someone wants to know of tiles on a processor that has them.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool has(const Feature& feature) {
  uint32_t regs[4] = {0, 0, 0, 0};
  if (__get_cpuid_count(feature.leaf, feature.subleaf, &regs[0], &regs[1], &regs[2], &regs[3]) == 0) return false;
  if ((regs[feature.reg] >> feature.bit & 1u) == 0) return false;
  if (feature.saved == kNone) return true;
  if ((saved_by_system() & feature.saved) != feature.saved) return false;
  return feature.saved != kTile || may_use_tiles();
}

}  // namespace

bool cpu_supports(std::string_view name) noexcept {
  for (const Feature& feature : kFeatures)
    if (feature.name == name) return has(feature);
  return false;
}
#elif defined(__aarch64__)
namespace {

// All of `hwcap` and `hwcap2` must be set in what the kernel says.
struct Feature {
  std::string_view name;
  uint64_t hwcap, hwcap2;
};

constexpr uint64_t bit(int n) { return uint64_t{1} << n; }

constexpr Feature kFeatures[] = {
    {"fp-armv8", bit(0), 0},
    {"neon", bit(1), 0},
    {"aes", bit(3) | bit(4), 0},
    {"sha2", bit(5) | bit(6), 0},
    {"crc", bit(7), 0},
    {"lse", bit(8), 0},
    {"fullfp16", bit(9) | bit(10), 0},
    {"rdm", bit(12), 0},
    {"jsconv", bit(13), 0},
    {"complxnum", bit(14), 0},
    {"rcpc", bit(15), 0},
    {"sha3", bit(17) | bit(21), 0},
    {"sm4", bit(18) | bit(19), 0},
    {"dotprod", bit(20), 0},
    {"sve", bit(22), 0},
    {"fp16fml", bit(23), 0},
    {"sve2", 0, bit(1)},
    {"i8mm", 0, bit(13)},
    {"bf16", 0, bit(14)},
};

}  // namespace

bool cpu_supports(std::string_view name) noexcept {
  for (const Feature& feature : kFeatures)
    if (feature.name == name)
      return (getauxval(AT_HWCAP) & feature.hwcap) == feature.hwcap &&
             (getauxval(AT_HWCAP2) & feature.hwcap2) == feature.hwcap2;
  return false;
}
#else
// No table for this architecture yet: a model that names features is refused rather than trusted.
bool cpu_supports(std::string_view) noexcept { return false; }
#endif

namespace {

// The first line of a file about a cache of the first processor, as Linux shows it; false if there is none.
bool read_line(int index, const char* name, char (&line)[32]) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  char path[96];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path, "re"));
  return file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr;
}

// Bytes of the first processor's data cache of a level; 0 where Linux doesn't say.
int64_t cache_bytes(int level) {
  char text[32];
  for (int index = 0; read_line(index, "level", text); ++index) {
    if (std::atoi(text) != level || !read_line(index, "type", text) || text[0] == 'I') continue;  // Instruction
    long long size = 0;
    char unit = 0;
    if (!read_line(index, "size", text) || std::sscanf(text, "%lld%c", &size, &unit) < 1) return 0;
    return static_cast<int64_t>(size) << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
  }
  return 0;
}

// The C library knows it on x86, the system alone on ARM.
int64_t find_l2_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  if (const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0) return bytes;
#endif
  return cache_bytes(2);
}

}  // namespace

int64_t l2_cache_bytes() noexcept {
  constexpr int64_t kUsual = 1 << 20, kLeast = 128 << 10, kMost = 64 << 20;
  static const int64_t bytes = find_l2_bytes();
  return bytes > 0 ? std::clamp(bytes, kLeast, kMost) : kUsual;
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
