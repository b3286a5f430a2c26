// What the machine is like beyond its instructions: caches from the system, rates by timing, kept from process to
// process.
#include "machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "cpu.hpp"
#include "measure.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

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

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr FactInfo kInfo[] = {
    {"l1d_bytes", 8 << 10, 1 << 20, false},
    {"l2_bytes", 128 << 10, 64 << 20, false},
    {"l3_bytes", 0, 4 * kGiB, false},
    {"l3_cores", 1, 1024, false},
    {"bf16_percent", 0, 800, true},
    {"wake_ns", 100, 2000, true},
    {"fma128_per_us", 100, 40'000, true},
    {"fma256_per_us", 100, 40'000, true},
    {"fma512_per_us", 100, 40'000, true},
    {"l2_bytes_per_us", 500, 4'000'000, true},
    {"l3_bytes_per_us", 500, 4'000'000, true},
    {"memory_bytes_per_us", 500, 4'000'000, true},
    {"ahead_one", 256, 32 << 10, true},
    {"ahead_few", 256, 32 << 10, true},
    {"ahead_more", 256, 32 << 10, true},
    {"tiles_percent", 0, 12'800, true},
};
static_assert(sizeof kInfo / sizeof *kInfo == DHLO_MACHINE_FIELDS, "a row for each fact");

// What the system says, and for what is measured the values of a usual server.
Facts nominal_facts() {
  const int64_t bf16 = cpu_supports("avx512bf16") || cpu_supports("bf16") ? 200 : 0;
  const int64_t tiles = cpu_supports("amx-bf16") || cpu_supports("amx-int8") ? 1600 : 0;
  return {std::clamp<int64_t>(cache_bytes(0, 32 << 10), 8 << 10, 1 << 20),
          l2_cache_bytes(),
          std::clamp<int64_t>(cache_bytes(3, 0), 0, 4 * kGiB),
          std::clamp<int64_t>(
              count_listed(first_line("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list").data()), 1, 1024),
          bf16,
          330,
          6000,
          6000,
          4000,
          100'000,
          60'000,
          30'000,
          8192,
          8192,
          12288,
          tiles};
}

// Where facts come from.
enum class Source { kKept, kMeasured, kNominal };

struct Settings {
  Source source = Source::kKept;
  Facts given{};  // -1 where nothing is
};

Settings read_settings(std::string_view text) {
  Settings settings;
  settings.given.fill(-1);
  if (text.empty()) return settings;
  settings.source = text == "measure" ? Source::kMeasured : Source::kNominal;
  if (text == "measure" || text == "nominal") return settings;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::string name(item.substr(0, item.find('=')));
    const std::string number(item.substr(std::min(item.size(), name.size() + 1)));
    int64_t index = 0;
    while (index < DHLO_MACHINE_FIELDS && name != kInfo[index].name) ++index;
    char* end = nullptr;
    const int64_t value = std::strtoll(number.c_str(), &end, 10);
    if (index == DHLO_MACHINE_FIELDS)
      throw Error(DHLO_INVALID_ARGUMENT,
                  "machine: expected 'measure', 'nominal' or name=value,..., got '" + std::string(item) + "'");
    if (number.empty() || *end != 0 || value < kInfo[index].least || value > kInfo[index].most)
      throw Error(DHLO_INVALID_ARGUMENT, "machine: " + name + ": expected a number from " +
                                             std::to_string(kInfo[index].least) + " to " +
                                             std::to_string(kInfo[index].most) + ", got '" + number + "'");
    settings.given[static_cast<size_t>(index)] = value;
  }
  return settings;
}

struct Machine {
  std::mutex mutex;
  Settings settings;
  FactsFile file;
  bool configured = false, found = false, core_found = false, wake_found = false;
  Facts facts = nominal_facts();
};

// Never destroyed: sessions may outlive static destructors.
Machine& the_machine() {
  alignas(Machine) static unsigned char storage[sizeof(Machine)];
  static Machine& machine = *new (storage) Machine;
  return machine;
}

void find(Machine& m) {
  if (!m.configured) {
    m.settings = read_settings("");
    const char* text = secure_getenv("DHLO_MACHINE");
    // What the environment says wrong was refused by check_machine_settings.
    if (text != nullptr) guard([&] { m.settings = read_settings(text); }, [](const char*) {});
  }
  m.facts = nominal_facts();
  if (m.settings.source == Source::kNominal) {
    for (size_t i = 0; i < m.facts.size(); ++i)
      if (m.settings.given[i] >= 0) m.facts[i] = m.settings.given[i];
    // Instructions that there aren't can't be taken, whatever they would be worth.
    const Facts nominal = nominal_facts();
    for (const size_t i : {DHLO_MACHINE_BF16_PERCENT, DHLO_MACHINE_TILES_PERCENT})
      if (nominal[i] == 0) m.facts[i] = 0;
    m.core_found = m.wake_found = true;
    return;
  }
  if (m.settings.source == Source::kKept) {
    m.file = facts_file();
    m.core_found = m.wake_found = read_facts(m.file, &m.facts);
  }
  if (!m.core_found) m.core_found = measure_core(&m.facts);
}

void find_wake(Machine& m, Pool* pool) {
  int64_t wake = 0;
  m.wake_found = true;  // or not to be found: not tried again in this process
  if (!measure_wake(pool, &wake)) return;
  const FactInfo& info = kInfo[DHLO_MACHINE_WAKE_NS];
  // Other sessions may be reading it.
  __atomic_store_n(&m.facts[DHLO_MACHINE_WAKE_NS], std::clamp(wake, info.least, info.most), __ATOMIC_RELAXED);
  if (m.core_found && m.settings.source == Source::kKept) write_facts(m.file, m.facts);
}

}  // namespace

const FactInfo& fact_info(int64_t index) noexcept { return kInfo[index]; }

const int64_t* machine_facts(Pool* pool) noexcept {
  Machine& m = the_machine();
  guard(
      [&] {
        std::lock_guard<std::mutex> lock(m.mutex);
        if (!m.found) find(m);
        m.found = true;
        if (!m.wake_found && pool != nullptr) find_wake(m, pool);
      },
      [](const char*) {});
  return m.facts.data();
}

bool configure_machine(const char* text) {
  Machine& m = the_machine();
  const Settings settings = read_settings(text);
  std::lock_guard<std::mutex> lock(m.mutex);
  if (m.found) return false;
  m.settings = settings;
  m.configured = true;
  return true;
}

void check_machine_settings() {
  Machine& m = the_machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  const char* text = secure_getenv("DHLO_MACHINE");
  if (text != nullptr && !m.configured) read_settings(text);
}

}  // namespace dhlo

dhlo_status dhlo_machine_configure(const char* text) {
  return dhlo::guard(
      [&] {
        if (text == nullptr) throw dhlo::Error(DHLO_INVALID_ARGUMENT, "dhlo_machine_configure: text is null");
        if (!dhlo::configure_machine(text))
          throw dhlo::Error(DHLO_BUSY, "dhlo_machine_configure: a model has been loaded already");
      },
      dhlo::set_last_error);
}

int64_t dhlo_machine_fact(int32_t index) {
  return index >= 0 && index < DHLO_MACHINE_FIELDS ? dhlo::machine_facts()[index] : -1;
}

const char* dhlo_machine_fact_name(int32_t index) {
  return index >= 0 && index < DHLO_MACHINE_FIELDS ? dhlo::fact_info(index).name : nullptr;
}
