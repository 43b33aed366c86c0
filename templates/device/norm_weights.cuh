// What a norm does to one vector of a row: its weights, the sum of its squares, and the normalised vector.
#pragma once

#include "device/row_reduce.cuh"
#include "device/vector.cuh"

namespace commfuse::device {

/// 1 / sqrt(sum of squares / count + eps).
COMMFUSE_DEVICE float inverse_rms(float sum_of_squares, float inverse_count, float eps) {
  return ptx::div_rn(1.0f, ptx::sqrt_rn(ptx::add_rn(ptx::mul_rn(sum_of_squares, inverse_count), eps)));
}

template <class Config>
struct NormWeights {
  static constexpr Type kType = Config::kType;
  static constexpr Type kGammaType = Config::kGammaType;
  static constexpr u32 kN = Elements<kType>::kPerVector;
  /// 16-bit rows may have fp32 weights: two vectors of them for one of the row.
  static constexpr u32 kWeightVectors = Elements<kGammaType>::kBytes / Elements<kType>::kBytes;
  static_assert(kWeightVectors >= 1, "weights are of the row's type or fp32");

  struct Weight {
    Vec16 part[kWeightVectors];
  };

  /// The weights of vector number `vector`; zeros if they are not `wanted`.
  static COMMFUSE_DEVICE Weight load(const void* weights, u32 vector, bool wanted) {
    Weight weight;
    const Vec16* vectors = static_cast<const Vec16*>(weights) + static_cast<u64>(vector) * kWeightVectors;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kWeightVectors; ++i)
      weight.part[i] = wanted ? ptx::load_weak(vectors + i) : Vec16{{0, 0, 0, 0}};
    return weight;
  }
  static COMMFUSE_DEVICE void unpack_plain(const Weight& weight, float (&out)[kN]) {
    if constexpr (kWeightVectors == 1) {
      unpack<kType>(weight.part[0], out);
    } else {
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kN; ++i) out[i] = ptx::float_of(weight.part[i / 4].word[i % 4]);
    }
  }
  static COMMFUSE_DEVICE void unpack_biased(const Weight& weight, float (&out)[kN]) {
    unpack_plain(weight, out);
    if constexpr (Config::kWeightBias) {
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kN; ++i) out[i] = ptx::add_rn(1.0f, out[i]);
    }
  }

  /// (x * inverse rms) * weight, one rounding to the element type at the end.
  static COMMFUSE_DEVICE Vec16 normalised(const Vec16& v, float inverse, const Weight& weight) {
    float x[kN];
    float w[kN];
    unpack<kType>(v, x);
    unpack_biased(weight, w);
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kN; ++i) x[i] = ptx::mul_rn(ptx::mul_rn(x[i], inverse), w[i]);
    return pack<kType>(x);
  }
  static COMMFUSE_DEVICE float sum_of_squares(const Vec16& v) {
    float x[kN];
    unpack<kType>(v, x);
    float sum = 0.0f;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kN; ++i) sum = ptx::fma_rn(x[i], x[i], sum);
    return sum;
  }
};

}  // namespace commfuse::device
