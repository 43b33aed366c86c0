// Single-precision arithmetic and conversions with the bits that the GPU gives. The host must be in its default
// rounding mode, keep subnormals and not contract (the build passes -ffp-contract=off).
#pragma once

#include <bit>
#include <cmath>

#include "device/types.cuh"

namespace commfuse::sim {

/// The GPU's arithmetic gives one NaN, whatever the operands.
inline float canonical(float v) { return v == v ? v : std::bit_cast<float>(0x7fffffffu); }

inline float max_number(float a, float b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? b : a;  // +0 is larger than -0
  return a > b ? a : b;
}

inline float half_to_float(device::u16 half) {
  const device::u32 sign = static_cast<device::u32>(half & 0x8000u) << 16;
  const device::u32 exponent = (half >> 10) & 0x1fu;
  const device::u32 fraction = half & 0x3ffu;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(fraction == 0 ? sign | 0x7f800000u : 0x7fffffffu);
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
    return std::bit_cast<float>(std::bit_cast<device::u32>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

inline device::u16 float_to_half(float v) {
  const device::u32 bits = std::bit_cast<device::u32>(v);
  const device::u32 sign = (bits >> 16) & 0x8000u;
  const device::u32 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<device::u16>(sign | 0x7c00u);  // 65520 and above
  const device::u32 exponent = magnitude >> 23;
  if (exponent < 102) return static_cast<device::u16>(sign);  // below half of the smallest subnormal
  // The significand, shifted so that its unit is the unit of the result, rounded to nearest even.
  const device::u32 significand = (magnitude & 0x7fffffu) | 0x800000u;
  const device::u32 shift = exponent >= 113 ? 13 : 126 - exponent;
  const device::u32 rounded = (significand + (1u << (shift - 1)) - 1 + ((significand >> shift) & 1u)) >> shift;
  // A significand that rounds up to the next power of two carries into the exponent, as it should.
  const device::u32 base = exponent >= 113 ? (exponent - 113) << 10 : 0;
  return static_cast<device::u16>(sign | (base + rounded));
}

inline device::u16 float_to_bfloat(float v) {
  const device::u32 bits = std::bit_cast<device::u32>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<device::u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace commfuse::sim
