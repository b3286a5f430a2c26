// What the machine is like beyond its instructions, as compiled code and tools see it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "dhlo/abi.h"

namespace dhlo {

class Pool;

using Facts = std::array<int64_t, DHLO_MACHINE_FIELDS>;

// A fact's name in texts, and between what it is kept; `measured` are those that timing finds.
struct FactInfo {
  const char* name;
  int64_t least, most;
  bool measured;
};
const FactInfo& fact_info(int64_t index) noexcept;

// DHLO_MACHINE_FIELDS numbers in the ranges that abi.h gives; found out by the first call, in at most some five
// milliseconds, or read from what an earlier process found. How long a launch takes to reach another thread is measured
// by the first call with a pool. Never fails: what can't be found out keeps its nominal value.
const int64_t* machine_facts(Pool* pool = nullptr) noexcept;

// How facts are found from now on, in the words of dhlo_machine_configure. False if they have been found already.
// Throws Error for texts that say nothing.
bool configure_machine(const char* text);

// Throws Error if DHLO_MACHINE says nothing that can be understood and decides.
void check_machine_settings();

// The file of what was measured on machines of one kind: `path` is empty where there is no folder for it, `key`
// identifies processor, microcode and topology. `read_facts` gives only what is whole, of that key, in range, and of
// this user or root; `write_facts` puts the file there as a whole, or not at all.
struct FactsFile {
  std::string path, key;
};
FactsFile facts_file();
bool read_facts(const FactsFile& file, Facts* facts) noexcept;
void write_facts(const FactsFile& file, const Facts& facts) noexcept;

}  // namespace dhlo
