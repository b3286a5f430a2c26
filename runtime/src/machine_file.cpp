// The file in which what was measured of a machine is kept, so that later processes need not measure again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cache_file.hpp"
#include "cpu.hpp"
#include "machine.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

// Of how facts are measured and written: another one isn't read.
constexpr const char* kVersion = "dhlo machine 2";
// The lines of the first processor's description that tell models, microcode and what a system lets be used of them
// apart.
std::string processor() {
  constexpr const char* kFields[] = {"vendor_id", "cpu family", "model",   "stepping",
                                     "microcode", "CPU ",       "flags\t", "Features\t"};
  const std::string all = start_of("/proc/cpuinfo");
  std::string out;
  for (size_t at = 0; at < all.size() && all[at] != '\n';) {
    const size_t end = std::min(all.find('\n', at), all.size());
    const std::string line = all.substr(at, end - at);
    for (const char* field : kFields)
      if (line.compare(0, std::strlen(field), field) == 0) {
        out += line + '\n';
        break;
      }
    at = end + 1;
  }
  return out;
}

std::string lines_of(const std::string& key, const Facts& facts) {
  std::string text = std::string(kVersion) + "\nkey " + key + "\n";
  for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i)
    if (fact_info(i).measured)
      text += std::string(fact_info(i).name) + " " + std::to_string(facts[static_cast<size_t>(i)]) + "\n";
  return text;
}

}  // namespace

FactsFile facts_file() {
  std::string identity = processor();
  for (const char* name : {"size", "shared_cpu_list"})
    for (int level = 0; level < 4; ++level) {
      char path[96];
      std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", level, name);
      identity += start_of(path);
    }
  identity += start_of("/sys/devices/system/cpu/online");
  identity += cpu_supports("amx-tile") ? "tiles" : "";  // which a system may refuse, and grant later
  FactsFile file{cache_folder(), digest_of(identity)};
  if (!file.path.empty()) file.path += "/machine-" + file.key.substr(0, 16) + ".txt";
  return file;
}

bool read_facts(const FactsFile& file, Facts* facts) noexcept {
  bool ok = false;
  guard(
      [&] {
        if (file.path.empty()) return;
        // Whole if it is what would be written of the numbers in it.
        const std::string text = read_cache_file(file.path);
        Facts read = *facts;
        for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i) {
          const FactInfo& info = fact_info(i);
          if (!info.measured) continue;
          const size_t at = text.find("\n" + std::string(info.name) + " ");
          if (at == std::string::npos) return;
          const int64_t value = std::strtoll(text.c_str() + at + std::strlen(info.name) + 2, nullptr, 10);
          if ((value < info.least || value > info.most)) return;
          read[static_cast<size_t>(i)] = value;
        }
        if (text != with_digest(lines_of(file.key, read))) return;
        *facts = read;
        ok = true;
      },
      [](const char*) {});
  return ok;
}

void write_facts(const FactsFile& file, const Facts& facts) noexcept {
  guard([&] { write_cache_file(file.path, with_digest(lines_of(file.key, facts))); }, [](const char*) {});
}

}  // namespace dhlo
