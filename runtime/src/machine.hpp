// Facts of the machine that compiled code may ask for.
#pragma once

#include <cstdint>

namespace dhlo {

// DHLO_MACHINE_FIELDS numbers in the ranges that abi.h gives; found out by the first call, in less than a millisecond.
const int64_t* machine_facts() noexcept;

}  // namespace dhlo
