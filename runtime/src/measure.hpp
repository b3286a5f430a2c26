// Timing of instructions, caches, prefetches and the pool: short loops, each the shortest of some turns.
#pragma once

#include <cstdint>

#include "machine.hpp"

namespace dhlo {

class Pool;

int64_t nanoseconds() noexcept;

// Sets the measured facts but the wake-up. Returns whether all were found in the time there is, and would be found
// again: other work on the machine shows in turns that differ, and those facts keep what they are.
bool measure_core(Facts* facts) noexcept;

// Sets how long a launch of the pool takes from its caller to another thread. Returns whether it was found.
bool measure_wake(Pool* pool, int64_t* nanoseconds) noexcept;

}  // namespace dhlo
