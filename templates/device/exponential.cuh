// exp(x) for x <= 0 by a fixed sequence of rounded operations, so that every GPU and the CPU give the same bits (the
// hardware's approximation differs between architectures).
#pragma once

#include "device/ptx.cuh"

namespace commfuse::device {

/// Error below one unit in the last place; 0 below -104; NaN gives NaN.
COMMFUSE_DEVICE float exp_of_nonpositive(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  // ln 2 in two parts, the first with zeros at its end: its product with a whole number up to 2^8 is exact.
  constexpr float kLn2High = 0x1.62e400p-1f;
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kShifter = 0x1.8p23f;  // adding it rounds to whole numbers, which then stand in the low bits
  if (x < -104.0f) return 0.0f;
  const float shifted = ptx::add_rn(ptx::mul_rn(x, kLog2E), kShifter);
  const float whole = ptx::add_rn(shifted, -kShifter);
  const float r = ptx::fma_rn(whole, -kLn2Low, ptx::fma_rn(whole, -kLn2High, x));
  float p = 1.0f / 5040.0f;
  p = ptx::fma_rn(p, r, 1.0f / 720.0f);
  p = ptx::fma_rn(p, r, 1.0f / 120.0f);
  p = ptx::fma_rn(p, r, 1.0f / 24.0f);
  p = ptx::fma_rn(p, r, 1.0f / 6.0f);
  p = ptx::fma_rn(p, r, 0.5f);
  p = ptx::fma_rn(p, r, 1.0f);
  p = ptx::fma_rn(p, r, 1.0f);
  // 2^whole as two factors, since one may be below the smallest normal number; only the last product rounds.
  const u32 down = ptx::bits_of(kShifter) - ptx::bits_of(shifted);  // -whole, 0 to 150
  const u32 half = down / 2;
  return ptx::mul_rn(ptx::mul_rn(p, ptx::float_of((127u - half) << 23)), ptx::float_of((127u - (down - half)) << 23));
}

}  // namespace commfuse::device
