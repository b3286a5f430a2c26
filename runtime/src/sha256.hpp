// SHA-256 (FIPS 180-4) in portable code and with the SHA instructions of x86; the runtime links no crypto library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace dhlo {

using Digest = std::array<uint8_t, 32>;

// The hash of one range, with the processor's SHA instructions where there are any. `portable` leaves them out.
Digest sha256(const void* data, size_t bytes, bool portable = false) noexcept;

// The digest of a file section of `bytes` bytes, as abi.h defines it. `get(offset, bytes)` makes a part of it available
// and says where it is; parts are of one or two pieces, each asked for once, by up to `threads` threads at once.
// Rethrows what `get` throws.
Digest section_digest(int64_t bytes, int64_t threads, const std::function<const uint8_t*(int64_t, int64_t)>& get);

// Calls task(i) for every i in [0, tasks), on this thread and up to `threads` - 1 others. Rethrows what one throws.
void in_parallel(int64_t tasks, int64_t threads, const std::function<void(int64_t)>& task);

// Lower-case hexadecimal digits.
std::string to_hex(const uint8_t* data, size_t bytes);

}  // namespace dhlo
