// Facts of the machine: the file that they are kept in, texts that say them, and what timing may make of them.
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "checks.hpp"
#include "machine.hpp"
#include "measure.hpp"
#include "pool.hpp"
#include "sha256.hpp"

namespace {

using dhlo::Facts;

bool in_range(const Facts& facts) {
  for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i) {
    const dhlo::FactInfo& info = dhlo::fact_info(i);
    if (facts[static_cast<size_t>(i)] < info.least || facts[static_cast<size_t>(i)] > info.most) return false;
  }
  return true;
}

// Each fact at the least of its range, and `step` more.
Facts some_facts(int64_t step) {
  Facts facts{};
  for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i) facts[static_cast<size_t>(i)] = dhlo::fact_info(i).least + step;
  return facts;
}

std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

bool reads(const dhlo::FactsFile& file) {
  Facts facts = some_facts(1);
  const bool ok = dhlo::read_facts(file, &facts);
  if (!ok) CHECK(facts == some_facts(1));  // left alone
  return ok;
}

void test_file(const std::string& folder) {
  const dhlo::FactsFile file{folder + "/a/b/machine.txt", "some key"};
  CHECK(!reads(file));
  dhlo::write_facts(file, some_facts(7));
  Facts facts = some_facts(1);
  CHECK(dhlo::read_facts(file, &facts));
  for (int64_t i = 0; i < DHLO_MACHINE_FIELDS; ++i)  // what the system tells is not in it
    CHECK(facts[static_cast<size_t>(i)] == dhlo::fact_info(i).least + (dhlo::fact_info(i).measured ? 7 : 1));
  CHECK(!reads({file.path, "another key"}));
  dhlo::write_facts(file, some_facts(9));
  CHECK(dhlo::read_facts(file, &facts) && facts[DHLO_MACHINE_BF16_PERCENT] == 9);

  const std::string whole = content(file.path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string rotten = whole;
    rotten[i] = static_cast<char>(rotten[i] ^ 1);
    put(file.path, rotten);
    CHECK(!reads(file));
    put(file.path, whole.substr(0, i));
    CHECK(!reads(file));
  }
  put(file.path, whole + "\n");
  CHECK(!reads(file));
  put(file.path, whole + std::string(1 << 16, 'x'));
  CHECK(!reads(file));
  put(file.path, std::string(4096, '\0'));
  CHECK(!reads(file));
  // A value out of range under a digest that is right: written by some other version.
  dhlo::write_facts(file, some_facts(-1));
  CHECK(content(file.path) != whole && !reads(file));

  put(file.path, whole);
  CHECK(reads(file));
  chmod(file.path.c_str(), 0666);
  CHECK(!reads(file));
  chmod(file.path.c_str(), 0644);
  CHECK(symlink(file.path.c_str(), (folder + "/link").c_str()) == 0 && !reads({folder + "/link", file.key}));
  CHECK(mkfifo((folder + "/fifo").c_str(), 0600) == 0 && !reads({folder + "/fifo", file.key}));
  CHECK(!reads({folder, file.key}) && !reads({"", file.key}));
  // Nowhere to write: nothing happens.
  dhlo::write_facts({file.path + "/x/y", file.key}, some_facts(1));
  dhlo::write_facts({"", file.key}, some_facts(1));
  dhlo::write_facts({"/proc/no/such", file.key}, some_facts(1));
  CHECK(content(file.path) == whole);
}

void test_places(const std::string& folder) {
  const auto path_with = [](const char* own, const char* caches, const char* home) {
    const char* names[] = {"DHLO_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
    const char* values[] = {own, caches, home};
    std::string kept[3];
    for (int i = 0; i < 3; ++i) {
      const char* before = std::getenv(names[i]);
      kept[i] = before != nullptr ? before : "";
      if (values[i] != nullptr)
        setenv(names[i], values[i], 1);
      else
        unsetenv(names[i]);
    }
    const dhlo::FactsFile file = dhlo::facts_file();
    for (int i = 0; i < 3; ++i) kept[i].empty() ? unsetenv(names[i]) : setenv(names[i], kept[i].c_str(), 1);
    CHECK(file.key == dhlo::facts_file().key && file.key.size() == 64);
    const size_t slash = file.path.rfind('/');
    return slash == std::string::npos ? file.path : file.path.substr(0, slash);
  };
  CHECK(path_with(folder.c_str(), "/c", "/h") == folder);
  CHECK(path_with("", "/c", "/h") == "/c/dhlo");
  CHECK(path_with(nullptr, "relative", "/h") == "/h/.cache/dhlo");
  CHECK(path_with(nullptr, nullptr, "").empty());
}

std::string refusal(const char* text) {
  return dhlo_machine_configure(text) == DHLO_INVALID_ARGUMENT ? dhlo_last_error() : "accepted";
}

// What hosts say, before facts are found and after; what the environment says wrong ends a load.
void test_texts() {
  CHECK(refusal(nullptr).find("text is null") != std::string::npos);
  for (const char* text :
       {"other", "measure,nominal", "wake_ns", "wake_ns=", "wake_ns=1x", "=5", "bf16_percent=100,x=1"})
    CHECK(refusal(text).rfind("machine: ", 0) == 0);
  CHECK(refusal("wake_ns=99").find("expected a number from 100 to 2000, got '99'") != std::string::npos);
  CHECK(refusal("wake_ns=99999999999999999999") != "accepted");
  setenv("DHLO_MACHINE", "nonsense", 1);
  try {
    make_model();
    CHECK(false);
  } catch (const dhlo::RuntimeError& error) {
    CHECK(std::string(error.what()).find("'nonsense'") != std::string::npos);
  }
  unsetenv("DHLO_MACHINE");
  CHECK(dhlo_machine_configure("measure") == DHLO_OK && dhlo_machine_configure("nominal") == DHLO_OK);
  CHECK(dhlo_machine_configure("wake_ns=1234,ahead_few=512") == DHLO_OK);
  CHECK(dhlo_machine_fact(DHLO_MACHINE_WAKE_NS) == 1234 && dhlo_machine_fact(DHLO_MACHINE_AHEAD_FEW) == 512);
  CHECK(dhlo_machine_fact(DHLO_MACHINE_AHEAD_ONE) == 8192);
  CHECK(dhlo_machine_fact(-1) == -1 && dhlo_machine_fact(DHLO_MACHINE_FIELDS) == -1);
  CHECK(dhlo_machine_fact_name(-1) == nullptr && dhlo_machine_fact_name(DHLO_MACHINE_FIELDS) == nullptr);
  CHECK(std::string(dhlo_machine_fact_name(DHLO_MACHINE_WAKE_NS)) == "wake_ns");
  CHECK(dhlo_machine_configure("") == DHLO_BUSY);
  const int64_t* facts = dhlo::machine_facts();
  const dhlo::Model model = make_model_with_threads(2);
  CHECK(dhlo::machine_facts() == facts && facts[DHLO_MACHINE_WAKE_NS] == 1234);
#if defined(__x86_64__)
  CHECK((facts[DHLO_MACHINE_BF16_PERCENT] > 0) == (dhlo_cpu_supports("avx512bf16") == 1));
  CHECK((facts[DHLO_MACHINE_TILES_PERCENT] > 0) == (dhlo_cpu_supports("amx-int8") == 1));
  // Who may use tiles of one kind may use all that the processor has: the system lets a process have their state.
  if (dhlo_cpu_supports("amx-int8") == 1) CHECK(dhlo_cpu_supports("amx-tile") == 1);
#endif
}

// In range however busy the machine is; what decides between orders of sums is the same each time.
void test_measuring() {
  Facts nominal{}, first{}, second{};
  for (int i = 0; i < DHLO_MACHINE_FIELDS; ++i) nominal[static_cast<size_t>(i)] = dhlo_machine_fact(i);
  first = second = nominal;
  dhlo::measure_core(&first);
  dhlo::measure_core(&second);
  CHECK(in_range(nominal) && in_range(first) && in_range(second));
  CHECK(first[DHLO_MACHINE_BF16_PERCENT] == second[DHLO_MACHINE_BF16_PERCENT]);
  // Tiles may run at a third of their rate for a while, which is still more than what they are chosen from.
  constexpr int64_t kPay = 400;
  CHECK((first[DHLO_MACHINE_TILES_PERCENT] >= kPay) == (second[DHLO_MACHINE_TILES_PERCENT] >= kPay));
  for (int i = 0; i < DHLO_MACHINE_BF16_PERCENT; ++i)
    CHECK(first[static_cast<size_t>(i)] == nominal[static_cast<size_t>(i)]);
  int64_t wake = 0;
  const auto pool = dhlo::Pool::get(2);
  CHECK(!dhlo::measure_wake(pool.get(), &wake) || wake > 0);
}

}  // namespace

void test_machine() {
  char name[] = "/tmp/dhlo-machine-XXXXXX";
  const char* folder = mkdtemp(name);
  CHECK(folder != nullptr);
  if (folder == nullptr) return;
  test_file(folder);
  test_places(folder);
  test_texts();
  test_measuring();
  for (const char* file : {"/a/b/machine.txt", "/link", "/fifo"}) unlink((std::string(folder) + file).c_str());
  for (const char* inner : {"/a/b", "/a", ""}) rmdir((std::string(folder) + inner).c_str());
}
