// SHA-256 (FIPS 180-4) in portable code and with the SHA instructions of x86; the runtime links no crypto library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dhlo {

using Digest = std::array<uint8_t, 32>;

// The hash of one range, with the processor's SHA instructions where there are any. `portable` leaves them out.
Digest sha256(const void* data, size_t bytes, bool portable = false) noexcept;

// Lower-case hexadecimal digits.
std::string to_hex(const uint8_t* data, size_t bytes);

}  // namespace dhlo
