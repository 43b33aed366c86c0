// A vector's elements as fp32 values and back, for every element type.
#pragma once

#include "device/ptx.cuh"

namespace commfuse::device {

template <Type kType>
struct Elements {
  static constexpr u32 kBytes = kType == Type::kFp32 ? 4 : 2;
  static constexpr u32 kPerVector = kVectorBytes / kBytes;
};

/// Widens every element exactly.
template <Type kType>
COMMFUSE_DEVICE void unpack(const Vec16& v, float (&out)[Elements<kType>::kPerVector]) {
  COMMFUSE_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (kType == Type::kFp32) {
      out[i] = ptx::float_of(v.word[i]);
    } else if constexpr (kType == Type::kBf16) {
      out[2 * i] = ptx::float_of(v.word[i] << 16);
      out[2 * i + 1] = ptx::float_of(v.word[i] & 0xffff0000u);
    } else {
      out[2 * i] = ptx::half_to_float(static_cast<u16>(v.word[i] & 0xffffu));
      out[2 * i + 1] = ptx::half_to_float(static_cast<u16>(v.word[i] >> 16));
    }
  }
}

/// Rounds every element to nearest even.
template <Type kType>
COMMFUSE_DEVICE Vec16 pack(const float (&in)[Elements<kType>::kPerVector]) {
  Vec16 v;
  COMMFUSE_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (kType == Type::kFp32) {
      v.word[i] = ptx::bits_of(in[i]);
    } else if constexpr (kType == Type::kBf16) {
      v.word[i] = ptx::floats_to_bfloat2(in[2 * i], in[2 * i + 1]);
    } else {
      v.word[i] = ptx::floats_to_half2(in[2 * i], in[2 * i + 1]);
    }
  }
  return v;
}

/// Element by element: the exact sum, rounded once to the element type.
template <Type kType>
COMMFUSE_DEVICE Vec16 add(const Vec16& a, const Vec16& b) {
  constexpr u32 kN = Elements<kType>::kPerVector;
  float x[kN];
  float y[kN];
  unpack<kType>(a, x);
  unpack<kType>(b, y);
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kN; ++i) x[i] = ptx::add_rn(x[i], y[i]);
  return pack<kType>(x);
}

/// The sum of vectors that are given one after the other, in the order that the contract fixes (ascending rank).
/// kWide keeps the running sum in fp32 and rounds once; otherwise every partial sum is rounded to the element type.
/// (For fp32 elements both are the same.) The sum starts with -0.0, which is what addition leaves unchanged: -0.0 + x
/// is x for every x, zeros of both signs included.
template <Type kType, bool kWide>
class Fold {
 public:
  static constexpr u32 kN = Elements<kType>::kPerVector;

  COMMFUSE_DEVICE Fold() {
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kN; ++i) wide_[i] = -0.0f;
    if constexpr (!kWide) narrow_ = pack<kType>(wide_);
  }
  COMMFUSE_DEVICE void next(const Vec16& v) {
    if constexpr (kWide) {
      float x[kN];
      unpack<kType>(v, x);
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kN; ++i) wide_[i] = ptx::add_rn(wide_[i], x[i]);
    } else {
      narrow_ = add<kType>(narrow_, v);
    }
  }
  COMMFUSE_DEVICE Vec16 sum() const {
    if constexpr (kWide) {
      return pack<kType>(wide_);
    } else {
      return narrow_;
    }
  }

 private:
  float wide_[kN];
  Vec16 narrow_;
};

}  // namespace commfuse::device
