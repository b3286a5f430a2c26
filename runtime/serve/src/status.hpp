// Errors inside the engine.
#pragma once

#include <string>

#include "boundary.hpp"

namespace dhlo::serve {

[[noreturn]] inline void refuse(const std::string& text) { throw Error(DHLO_INVALID_ARGUMENT, text); }

}  // namespace dhlo::serve
