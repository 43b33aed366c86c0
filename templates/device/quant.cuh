// Quantisation of a normalised row, for the vectors of it that one thread holds.
//
// It starts from the norm as it is stored (rounded to fp16 or bf16), so a quantised result is the same whether or not
// the norm is written too. Every step rounds to nearest even and a NaN stays visible (0x7f in FP8, +6 in FP4, which has
// no NaN); NaN elements do not enter the maximum of a block. A block of zeros gives zeros and a finite scale.
//
// The 32 lanes of a warp hold 32 consecutive vectors, that is 256 columns, so a block of 16, 32, 64, 128 or 256 columns
// never straddles warps and its maximum is a butterfly over neighbouring lanes. All lanes of a warp call encode(), with
// zeros for vectors beyond the row; a row is a whole number of blocks, so these never meet the row's own.
#pragma once

#include "device/quant_formats.cuh"
#include "device/scale_layout.cuh"

namespace commfuse::device {

constexpr u32 kQuantElements = 8;  // of a vector; fp32 is not quantised

/// Addresses of one call. Unused ones are null.
struct QuantTensors {
  u8* values;  ///< [tokens, hidden size] E4M3, or [tokens, hidden size / 2] pairs of E2M1, even column low
  u8* scales;  ///< see scale_layout.cuh; kFp8Token: fp32 [tokens]
  const float* scale_factor;  ///< one number in device memory (kFp8Tensor, kFp4)
  u64 scale_stride;           ///< distance of two columns of scales (kFp8Block: floats, kFp8Group: words)
};

/// A vector's part of the result. `scale` is an fp32's bits, a UE8M0 or an E4M3 code, the same in all lanes of the
/// block.
struct QuantizedVector {
  u32 word[2];  ///< eight bytes of E4M3; FP4 uses only the first
  u32 scale;
};

/// The largest magnitude of the elements that are numbers.
COMMFUSE_DEVICE float absolute_maximum(const float (&x)[kQuantElements]) {
  float maximum = 0.0f;
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kQuantElements; ++i) {
    maximum = ptx::max_number(maximum, ptx::float_of(ptx::bits_of(x[i]) & software::kMagnitudeMask));
  }
  return maximum;
}

/// The largest of kLanes neighbouring lanes (a power of two up to 32), in each of them. No operand is NaN.
template <u32 kLanes>
COMMFUSE_DEVICE float lanes_maximum(float v) {
  static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "butterflies need a power of two");
  COMMFUSE_UNROLL
  for (u32 distance = kLanes / 2; distance > 0; distance /= 2) v = ptx::max_number(v, ptx::shuffle_xor(v, distance));
  return v;
}

/// Stands for x / divisor on the way to E4M3: equal to the rounded quotient wherever that does not become zero anyway.
/// `inverse` is 1 / divisor, rounded. One Newton step on the rounded product gives the rounded quotient as long as
/// nothing underflows; the residual's sign is chosen so that a zero keeps the sign of x. An infinite divisor has
/// inverse 0, and the product is the quotient.
COMMFUSE_DEVICE float quotient_for_e4m3(float x, float divisor, float inverse) {
  const float product = ptx::mul_rn(x, inverse);
  const float excess = ptx::fma_rn(product, divisor, -x);
  return inverse == 0.0f ? product : ptx::fma_rn(excess, -inverse, product);
}

/// What to do with the rows of kernel Config, which has kHiddenSize, kQuantizer and, where they apply, kScaleLayout and
/// kGroupColumns.
template <class Config>
class RowQuantizer {
 public:
  static constexpr Quantizer kQuantizer = Config::kQuantizer;
  static constexpr u32 kColumns = Config::kHiddenSize;

  /// Columns that share a scale; 0: the row or the whole tensor does.
  static COMMFUSE_SHARED u32 block_columns() {
    if constexpr (kQuantizer == Quantizer::kFp8Block) return kFp8BlockColumns;
    if constexpr (kQuantizer == Quantizer::kFp8Group) return Config::kGroupColumns;
    if constexpr (kQuantizer == Quantizer::kFp4) return kFp4BlockColumns;
    return 0;
  }
  static constexpr bool kHasBlocks = block_columns() != 0;
  static constexpr u32 kBlockLanes = kHasBlocks ? block_columns() / kQuantElements : 1;
  static constexpr u32 kBlocks = kHasBlocks ? kColumns / block_columns() : 0;
  static constexpr bool kNeedsRowMaximum = kQuantizer == Quantizer::kFp8Token;
  /// Bytes of the values of one row and of one vector.
  static constexpr u32 kVectorBytesOut = kQuantizer == Quantizer::kFp4 ? 4 : 8;
  static constexpr u32 kRowBytesOut = kColumns / kQuantElements * kVectorBytesOut;

  static_assert(kColumns % kQuantElements == 0, "rows are multiples of 16 bytes");
  static_assert(!kHasBlocks || block_columns() % kQuantElements == 0, "blocks are whole vectors");
  static_assert(!kHasBlocks || kColumns % block_columns() == 0, "rows are whole blocks");

  /// Reads the scale factor: after the dependency wait.
  COMMFUSE_DEVICE explicit RowQuantizer(const QuantTensors& tensors)
      : tensors_(tensors), factor_(0.0f), inverse_(0.0f) {
    if constexpr (kQuantizer == Quantizer::kFp8Tensor || kQuantizer == Quantizer::kFp4) {
      factor_ = ptx::load_weak(tensors.scale_factor);
    }
    if constexpr (kQuantizer == Quantizer::kFp8Tensor) inverse_ = ptx::div_rn(1.0f, factor_);
  }

  /// `x`: the vector's eight elements of the stored norm. `row_maximum` counts for kFp8Token only: the largest
  /// absolute_maximum() of the row.
  COMMFUSE_DEVICE QuantizedVector encode(const float (&x)[kQuantElements], float row_maximum = 0.0f) const {
    if constexpr (kQuantizer == Quantizer::kFp8Tensor) {
      return times(x, inverse_, 0);
    } else if constexpr (kQuantizer == Quantizer::kFp8Token) {
      return by_token(x, row_maximum);
    } else {
      const float maximum = lanes_maximum<kBlockLanes>(absolute_maximum(x));
      if constexpr (kQuantizer == Quantizer::kFp8Block) {
        const float scale = ptx::div_rn(ptx::max_number(maximum, kSmallestMaximum), kE4m3Max);
        return times(x, ptx::div_rn(1.0f, scale), ptx::bits_of(scale));
      } else if constexpr (kQuantizer == Quantizer::kFp8Group) {
        const u32 code = ceil_to_ue8m0(ptx::max_number(ptx::div_rn(maximum, kE4m3Max), kSmallestMaximum));
        return times(x, inverse_of_ue8m0(code), code);
      } else {
        return fp4(x, maximum);
      }
    }
  }

  /// Whether the lane of the row's vector number `vector` is the one that stores its block's (or row's) scale.
  static COMMFUSE_DEVICE bool stores_scale(u32 vector) {
    if constexpr (kQuantizer == Quantizer::kFp8Tensor) return false;
    if constexpr (kQuantizer == Quantizer::kFp8Token) return vector == 0;
    return vector % kBlockLanes == 0;
  }

  /// Writes the values of vector number `vector` of row `row`, `offset` bytes from where the tensor lies (0, or the way
  /// to a peer's).
  COMMFUSE_DEVICE void store_values(u64 row, u32 vector, const QuantizedVector& v, u64 offset = 0) const {
    u8* values = tensors_.values + offset + row * kRowBytesOut + vector * kVectorBytesOut;
    if constexpr (kQuantizer == Quantizer::kFp4) {
      ptx::store_weak(reinterpret_cast<u32*>(values), v.word[0]);
    } else {
      ptx::store_weak(reinterpret_cast<u64*>(values), static_cast<u64>(v.word[1]) << 32 | v.word[0]);
    }
  }

  /// Writes the scale of the block (or row) of vector number `vector`; for the lane that stores_scale() says.
  COMMFUSE_DEVICE void store_scale(u64 row, u32 vector, u32 scale, u64 offset = 0) const {
    const u32 block = vector / kBlockLanes;
    u8* const tensor = tensors_.scales + offset;
    if constexpr (kQuantizer == Quantizer::kFp8Block) {
      u32* scales = reinterpret_cast<u32*>(tensor);
      ptx::store_weak(scales + block_scale_index(row, block, tensors_.scale_stride), scale);
    } else if constexpr (kQuantizer == Quantizer::kFp8Token) {
      ptx::store_weak(reinterpret_cast<u32*>(tensor) + row, scale);
    } else if constexpr (kQuantizer == Quantizer::kFp4) {
      u8* scales = tensor + fp4_scale_offset(Config::kScaleLayout, row, block, kBlocks);
      ptx::store_weak(scales, static_cast<u8>(scale));
    } else if constexpr (kQuantizer == Quantizer::kFp8Group) {
      u8* scales = tensor + packed_scale_offset(row, block, tensors_.scale_stride);
      ptx::store_weak(scales, static_cast<u8>(scale));
      if (kBlocks % 4 != 0 && block == kBlocks - 1) {  // the word has room for groups that do not exist
        COMMFUSE_UNROLL
        for (u32 i = 1; i < 4; ++i) {
          if (block % 4 + i < 4) ptx::store_weak(scales + i, static_cast<u8>(0));
        }
      }
    }
  }

  /// Writes 0 to the scales that pad the layout (rows beyond `rows`, blocks beyond the row). The work is cut into items
  /// of which the caller takes number `first` and every `step`-th after it.
  COMMFUSE_DEVICE void zero_padding(u64 rows, u64 first, u64 step) const {
    if constexpr (kQuantizer == Quantizer::kFp4) {
      zero_tiles(rows, first, step);
    } else if constexpr (kQuantizer == Quantizer::kFp8Block || kQuantizer == Quantizer::kFp8Group) {
      // The last column ends with its last row (column_major_elements), so there is nothing behind it.
      constexpr u64 kScaleColumns = kQuantizer == Quantizer::kFp8Block ? kBlocks : (kBlocks + 3) / 4;
      const u64 padding = tensors_.scale_stride - rows;
      u32* scales = reinterpret_cast<u32*>(tensors_.scales);
      for (u64 i = first; i < padding * (kScaleColumns - 1); i += step) {
        ptx::store_weak(
            scales + block_scale_index(rows + i % padding, static_cast<u32>(i / padding), tensors_.scale_stride), 0u);
      }
    }
  }

 private:
  static constexpr float kSmallestMaximum = 1e-10f;
  static constexpr float kSmallestTokenScale = 0x1p-9f / kE4m3Max;
  static constexpr float kSixth = 1.0f / 6.0f;

  static COMMFUSE_DEVICE QuantizedVector times(const float (&x)[kQuantElements], float multiplier, u32 scale) {
    float y[kQuantElements];
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kQuantElements; ++i) y[i] = ptx::mul_rn(x[i], multiplier);
    return fp8(y, scale);
  }
  static COMMFUSE_DEVICE QuantizedVector by_token(const float (&x)[kQuantElements], float row_maximum) {
    const float scale = ptx::max_number(ptx::div_rn(row_maximum, kE4m3Max), kSmallestTokenScale);
    const float inverse = ptx::div_rn(1.0f, scale);
    float y[kQuantElements];
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kQuantElements; ++i) y[i] = quotient_for_e4m3(x[i], scale, inverse);
    return fp8(y, ptx::bits_of(scale));
  }
  static COMMFUSE_DEVICE QuantizedVector fp8(const float (&y)[kQuantElements], u32 scale) {
    return {{floats_to_e4m3x4(y[0], y[1], y[2], y[3]), floats_to_e4m3x4(y[4], y[5], y[6], y[7])}, scale};
  }
  COMMFUSE_DEVICE QuantizedVector fp4(const float (&x)[kQuantElements], float maximum) const {
    // max_number turns a NaN (an infinite factor times a block of zeros) and a negative factor into a scale of 0.
    const u32 scale = float_to_e4m3(ptx::max_number(ptx::mul_rn(factor_, ptx::mul_rn(maximum, kSixth)), 0.0f));
    const float multiplier = scale == 0 ? 0.0f : ptx::div_rn(factor_, e4m3_to_float(scale));
    float y[kQuantElements];
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kQuantElements; ++i) y[i] = ptx::mul_rn(x[i], multiplier);
    return {{floats_to_e2m1x8(y), 0}, scale};
  }

  COMMFUSE_DEVICE void zero_tiles(u64 rows, u64 first, u64 step) const {
    constexpr ScaleLayout kLayout = Config::kScaleLayout;
    if constexpr (kLayout != ScaleLayout::kLinear) {
      constexpr u64 kWords = padded_blocks(kLayout, kBlocks) / 4;  // of a row; four blocks of a row are a word
      const u64 row_words = (padded_rows(kLayout, rows) - rows) * kWords;
      for (u64 i = first; i < row_words; i += step) {
        const u64 offset = fp4_scale_offset(kLayout, rows + i / kWords, i % kWords * 4, kBlocks);
        ptx::store_weak(reinterpret_cast<u32*>(tensors_.scales + offset), 0u);
      }
      constexpr u64 kMissing = kWords * 4 - kBlocks;
      if constexpr (kMissing != 0) {
        for (u64 i = first; i < rows * kMissing; i += step) {
          const u64 offset = fp4_scale_offset(kLayout, i / kMissing, kBlocks + i % kMissing, kBlocks);
          ptx::store_weak(tensors_.scales + offset, static_cast<u8>(0));
        }
      }
    }
  }

  QuantTensors tensors_;
  float factor_;
  float inverse_;
};

}  // namespace commfuse::device
