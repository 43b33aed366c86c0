// Number formats of the reference. One generic rounding routine serves every format, so it shares neither code nor
// idea with the conversions under templates/.
#pragma once

#include <bit>
#include <cstdint>

namespace commfuse::reference {

/// Every computed NaN of fp32 has these bits, as on the GPU.
inline constexpr std::uint32_t kCanonicalNan = 0x7fffffffu;

[[nodiscard]] inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
[[nodiscard]] inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Narrowing rounds to nearest, ties to even, and keeps subnormals.

/// Overflow gives infinity, NaN gives 0x7fff.
[[nodiscard]] std::uint16_t to_half(float value);
/// Overflow gives infinity, NaN gives 0x7fff.
[[nodiscard]] std::uint16_t to_bfloat(float value);
/// FP8 E4M3 (no infinities): saturates to +-448, NaN of either sign gives 0x7f.
[[nodiscard]] std::uint8_t to_e4m3(float value);
/// FP4 E2M1 (neither infinities nor NaN) in the low nibble: saturates to +-6, NaN gives +6 (0x7).
[[nodiscard]] std::uint8_t to_e2m1(float value);

[[nodiscard]] float from_half(std::uint16_t bits);
[[nodiscard]] float from_bfloat(std::uint16_t bits);
[[nodiscard]] float from_e4m3(std::uint8_t bits);
[[nodiscard]] float from_e2m1(std::uint8_t nibble);

}  // namespace commfuse::reference
