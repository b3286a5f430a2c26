// The levels of a model: the same program as code for several kinds of machine, of which this one takes one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "dhlo/abi.h"

namespace dhlo {

struct Level {
  std::string name, features;
};

// Those of a descriptor whose fields the runtime has checked, in its order.
std::vector<Level> levels_of(const dhlo_abi_model& abi);

// The text of a file's section of features, and back. Reading throws Error(DHLO_FORMAT) for too many levels.
std::string write_levels(const std::vector<Level>& levels);
std::vector<Level> read_levels(std::string_view text, const std::string& label);

// The number of the last level that this machine can run. Where there are several, DHLO_TARGET may name one, or several
// of which it is to be. Throws Error(DHLO_CPU) where no level can run, or not the one that was asked for, or the model
// doesn't have that.
size_t choose_level(const std::vector<Level>& levels, const std::string& label);

}  // namespace dhlo
