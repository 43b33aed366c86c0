#include "reference/formats.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace commfuse::reference {
namespace {

struct Format {
  int mantissa_bits;    ///< stored ones
  int min_exponent;     ///< of the smallest normal value
  std::uint32_t limit;  ///< bits (without sign) of what overflow becomes: infinity, or the largest finite value
  std::uint32_t nan;    ///< bits of NaN, sign included
  int sign_bit;
};

constexpr Format kHalf{10, -14, 0x7c00, 0x7fff, 15};
constexpr Format kBfloat{7, -126, 0x7f80, 0x7fff, 15};
constexpr Format kE4m3{3, -6, 0x7e, 0x7f, 7};
constexpr Format kE2m1{1, 0, 0x7, 0x7, 3};

/// Counts the units in the last place of the format that `value` comes to, rounding the count to nearest even. Counts
/// and bits are the same thing in a binary format: a carry moves into the exponent by itself.
template <Format F>
std::uint32_t narrow(float value) {
  if (std::isnan(value)) return F.nan;
  const std::uint32_t sign = std::signbit(value) ? 1u << F.sign_bit : 0u;
  const std::uint32_t magnitude = bits_of(value) & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return sign | F.limit;
  const int exponent_field = static_cast<int>(magnitude >> 23);
  const std::uint64_t significand = (magnitude & 0x7fffffu) | (exponent_field != 0 ? 0x800000u : 0u);
  const int exponent = exponent_field != 0 ? exponent_field - 127 : -126;  // value = significand * 2^(exponent - 23)
  const int kept_exponent = exponent > F.min_exponent ? exponent : F.min_exponent;
  const int dropped = kept_exponent - F.mantissa_bits - (exponent - 23);  // low bits of the significand that go
  if (dropped > 40) return sign;
  const std::uint64_t quotient = significand >> dropped;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << dropped) - 1);
  const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
  const bool up = rest > half || (rest == half && (quotient & 1) != 0);
  const std::uint64_t units = quotient + (up ? 1 : 0);
  const std::uint64_t bits = units + (static_cast<std::uint64_t>(kept_exponent - F.min_exponent) << F.mantissa_bits);
  return sign | (bits < F.limit ? static_cast<std::uint32_t>(bits) : F.limit);
}

template <Format F>
float widen_finite(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ((1u << F.sign_bit) - 1);
  const int field = static_cast<int>(magnitude >> F.mantissa_bits);
  const int fraction = static_cast<int>(magnitude & ((1u << F.mantissa_bits) - 1));
  const int significand = field != 0 ? fraction + (1 << F.mantissa_bits) : fraction;
  const int exponent = (field != 0 ? field - 1 : 0) + F.min_exponent - F.mantissa_bits;
  const float value = std::ldexp(static_cast<float>(significand), exponent);
  return (bits >> F.sign_bit & 1) != 0 ? -value : value;
}

std::array<float, 65536> make_half_table() {
  std::array<float, 65536> table{};
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude > 0x7c00u) {
      table[bits] = float_of(kCanonicalNan);
    } else if (magnitude == 0x7c00u) {
      table[bits] =
          (bits & 0x8000u) != 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
    } else {
      table[bits] = widen_finite<kHalf>(bits);
    }
  }
  return table;
}

}  // namespace

std::uint16_t to_half(float value) { return static_cast<std::uint16_t>(narrow<kHalf>(value)); }
std::uint16_t to_bfloat(float value) { return static_cast<std::uint16_t>(narrow<kBfloat>(value)); }
std::uint8_t to_e4m3(float value) { return static_cast<std::uint8_t>(narrow<kE4m3>(value)); }
std::uint8_t to_e2m1(float value) { return static_cast<std::uint8_t>(narrow<kE2m1>(value)); }

float from_half(std::uint16_t bits) {
  static const std::array<float, 65536> table = make_half_table();
  return table[bits];
}
float from_bfloat(std::uint16_t bits) { return float_of(static_cast<std::uint32_t>(bits) << 16); }
float from_e4m3(std::uint8_t bits) {
  return (bits & 0x7f) == 0x7f ? float_of(kCanonicalNan) : widen_finite<kE4m3>(bits);
}
float from_e2m1(std::uint8_t nibble) { return widen_finite<kE2m1>(nibble & 0xfu); }

}  // namespace commfuse::reference
