// The number formats that results are quantised to: FP8 E4M3, FP4 E2M1 and the exponent-only UE8M0. Each narrowing is
// one instruction where the architecture has it and exact software elsewhere; both give the same bits for all inputs.
// namespace software is what the simulator runs and what tests compare with the vendor's own host conversions.
#pragma once

#include "device/ptx.cuh"

namespace commfuse::device {

constexpr float kE4m3Max = 448.0f;

namespace software {

constexpr u32 kMagnitudeMask = 0x7fffffffu;
constexpr u32 kInfinityBits = 0x7f800000u;

/// The narrowing that both formats share, for a format of kMantissa stored mantissa bits whose smallest normal value is
/// 2^kMinExponent and whose codes end at kMaxCode. Returns the code of |x|; x is not NaN.
/// Normal values: the code is the high bits of the float, rebiased, after adding just under half a unit (exactly half
/// when the kept part is odd). Subnormal ones: adding the power of two whose unit in the last place is the format's
/// smallest step makes the addition itself round to it.
template <int kMantissa, int kMinExponent, u32 kMaxCode>
COMMFUSE_DEVICE u32 narrow_magnitude(u32 magnitude) {
  constexpr u32 kDropped = 23 - kMantissa;
  constexpr u32 kMinNormal = static_cast<u32>(127 + kMinExponent) << 23;
  constexpr u32 kRebias = static_cast<u32>(126 + kMinExponent) << kMantissa;
  constexpr u32 kShifterBits = static_cast<u32>(127 + 23 + kMinExponent - kMantissa) << 23;
  if (magnitude < kMinNormal) {
    return ptx::bits_of(ptx::add_rn(ptx::float_of(magnitude), ptx::float_of(kShifterBits))) - kShifterBits;
  }
  const u32 odd = (magnitude >> kDropped) & 1u;
  const u32 code = ((magnitude + ((1u << (kDropped - 1)) - 1u) + odd) >> kDropped) - kRebias;
  return ptx::min_u32(code, kMaxCode);
}

/// Nearest even, saturates to +-448, NaN of either sign gives 0x7f.
COMMFUSE_DEVICE u32 float_to_e4m3(float x) {
  const u32 bits = ptx::bits_of(x);
  const u32 magnitude = bits & kMagnitudeMask;
  if (magnitude > kInfinityBits) return 0x7fu;
  return ((bits >> 24) & 0x80u) | narrow_magnitude<3, -6, 0x7e>(magnitude);
}

/// Nearest even, saturates to +-6, NaN gives +6.
COMMFUSE_DEVICE u32 float_to_e2m1(float x) {
  const u32 bits = ptx::bits_of(x);
  const u32 magnitude = bits & kMagnitudeMask;
  if (magnitude > kInfinityBits) return 0x7u;
  return ((bits >> 28) & 0x8u) | narrow_magnitude<1, 0, 0x7>(magnitude);
}

}  // namespace software

/// Four E4M3 bytes, v[0] lowest.
COMMFUSE_DEVICE u32 floats_to_e4m3x4(float v0, float v1, float v2, float v3) {
#ifdef COMMFUSE_CONVERTS_E4M3
  return ptx::floats_to_e4m3x2(v0, v1) | (ptx::floats_to_e4m3x2(v2, v3) << 16);
#else
  return software::float_to_e4m3(v0) | (software::float_to_e4m3(v1) << 8) | (software::float_to_e4m3(v2) << 16) |
         (software::float_to_e4m3(v3) << 24);
#endif
}

COMMFUSE_DEVICE u32 float_to_e4m3(float v) {
#ifdef COMMFUSE_CONVERTS_E4M3
  return ptx::floats_to_e4m3x2(v, 0.0f);
#else
  return software::float_to_e4m3(v);
#endif
}

/// Eight E2M1 nibbles, v[0] lowest.
COMMFUSE_DEVICE u32 floats_to_e2m1x8(const float (&v)[8]) {
#ifdef COMMFUSE_CONVERTS_E2M1
  return ptx::floats_to_e2m1x8(v);
#else
  u32 packed = 0;
  COMMFUSE_UNROLL
  for (u32 i = 0; i < 8; ++i) packed |= software::float_to_e2m1(v[i]) << (4 * i);
  return packed;
#endif
}

/// Exact; both NaN codes give NaN.
COMMFUSE_DEVICE float e4m3_to_float(u32 byte) {
  const u32 magnitude = byte & 0x7fu;
  // Code bits put where a float has them, with E4M3's bias of 7 still in the exponent; the factor 2^120 corrects it and
  // normalises subnormals on the way.
  const float scaled = ptx::mul_rn(ptx::float_of(magnitude << 20), 0x1p120f);
  const u32 bits = magnitude == 0x7fu ? 0x7fffffffu : ptx::bits_of(scaled);
  return ptx::float_of(bits | ((byte & 0x80u) << 24));
}

/// Exact. Only the low four bits count.
COMMFUSE_DEVICE float e2m1_to_float(u32 nibble) {
  const float scaled = ptx::mul_rn(ptx::float_of((nibble & 0x7u) << 22), 0x1p126f);
  return ptx::float_of(ptx::bits_of(scaled) | ((nibble & 0x8u) << 28));
}

/// UE8M0: the biased exponent of the smallest power of two that is not below `v`. v is positive, at least 2^-126;
/// infinity gives the largest finite scale, 2^127 (code 255 would mean NaN).
COMMFUSE_DEVICE u32 ceil_to_ue8m0(float v) {
  const u32 bits = ptx::bits_of(v);
  return ptx::min_u32((bits >> 23) + ((bits & 0x7fffffu) != 0u ? 1u : 0u), 254u);
}

/// 1 / 2^(code - 127), exactly, for codes up to 254.
COMMFUSE_DEVICE float inverse_of_ue8m0(u32 code) {
  return ptx::float_of(code == 254u ? 0x00400000u : (254u - code) << 23);
}

}  // namespace commfuse::device
