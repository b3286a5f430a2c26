// What the runtime relies on in what compiled code says of itself.
#pragma once

#include <cstdint>
#include <string>

#include "dhlo/abi.h"

namespace dhlo {

// Everything the runtime relies on in a descriptor that came with the code; `label` names the model. Returns the level
// that this machine takes. Throws Error.
int64_t check_descriptor(const dhlo_abi_model& abi, int64_t constants_bytes, const std::string& label);

}  // namespace dhlo
