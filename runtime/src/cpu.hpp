// Which processor features this machine offers, by LLVM's names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dhlo {

// True if processor and operating system support `feature`; false for unknown names, which cannot be vouched for.
bool cpu_supports(std::string_view feature) noexcept;

// Bytes of a core's second-level cache; 1 MiB where the system doesn't say.
int64_t l2_cache_bytes() noexcept;

// Those of the comma-separated `features` that are missing, comma-separated; empty if none is.
std::string missing_cpu_features(std::string_view features);

}  // namespace dhlo
