// What happens to a token's sum: residual add and RMSNorm, for the vectors of it that one thread holds.
#pragma once

#include "device/row_sum.cuh"
#include "device/vector.cuh"

namespace commfuse::device {

/// The squares of a vector's elements, added in order.
template <Type kType>
COMMFUSE_DEVICE float sum_of_squares(const Vec16& v) {
  float x[Elements<kType>::kPerVector];
  unpack<kType>(v, x);
  float sum = 0.0f;
  COMMFUSE_UNROLL
  for (u32 i = 0; i < Elements<kType>::kPerVector; ++i) sum = ptx::fma_rn(x[i], x[i], sum);
  return sum;
}

/// 1 / sqrt(mean square + eps), every step rounded to nearest: the CPU computes the same bits.
template <u32 kHiddenSize>
COMMFUSE_DEVICE float inverse_rms(float sum_of_squares, float eps) {
  constexpr float kInverseSize = 1.0f / static_cast<float>(kHiddenSize);
  return ptx::div_rn(1.0f, ptx::sqrt_rn(ptx::add_rn(ptx::mul_rn(sum_of_squares, kInverseSize), eps)));
}

/// (y * inverse rms) * gamma, one rounding to the element type at the end.
template <Type kType>
COMMFUSE_DEVICE Vec16 normalised(const Vec16& y, float inverse, const Vec16& gamma) {
  constexpr u32 kN = Elements<kType>::kPerVector;
  float x[kN];
  float g[kN];
  unpack<kType>(y, x);
  unpack<kType>(gamma, g);
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kN; ++i) x[i] = ptx::mul_rn(ptx::mul_rn(x[i], inverse), g[i]);
  return pack<kType>(x);
}

}  // namespace commfuse::device
