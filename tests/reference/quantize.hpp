// Quantisation of a normalised matrix, bit for bit.
//
// FP8 is E4M3, nearest even, saturating; a NaN stays visible as 0x7f. In the block and group forms a NaN does not
// enter the block's maximum. Every scale that is stored is finite unless the maximum itself is infinite.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/scale_layout.hpp"
#include "reference/tensor.hpp"

namespace commfuse::reference {

enum class Quantizer {
  kFp8Tensor,  ///< one given scale: q = e4m3(x * (1 / scale_factor)); no scale output
  kFp8Block,   ///< 128 columns: scale = max(1e-10, amax) / 448, q = e4m3(x * (1 / scale)); fp32 scales, column-major
  kFp8Token,   ///< a row: scale = max(amax / 448, 2^-9 / 448), q = e4m3(x / scale); fp32 scales, one a row
  kFp8Group,   ///< `group` columns: scale = the power of two not below max(amax / 448, 1e-10); packed UE8M0
  kFp4,        ///< 16 columns of E2M1: scale = e4m3(G * (amax * (1 / 6))), q = e2m1(x * (G / scale)); see ScaleLayout
};

struct Quantization {
  Quantizer quantizer = Quantizer::kFp8Tensor;
  float scale_factor = 1.0f;  ///< kFp8Tensor: the scale; kFp4: the global scale G
  int group = 128;            ///< kFp8Group: columns of a group
  ScaleLayout layout = ScaleLayout::kSwizzled128x4;
  std::int64_t scale_stride = 0;  ///< kFp8Block, kFp8Group: distance of two columns; 0: rows rounded up to 4
  std::uint8_t untouched = 0;     ///< every byte of the scales before they are written; padding keeps it
  bool zero_padding = false;      ///< padding is written with 0 instead
};

struct Quantized {
  Bytes
      values;  ///< [rows, columns] of E4M3, or [rows, columns / 2] of pairs of E2M1, the even column in the low nibble
  Bytes scales;  ///< empty for kFp8Tensor
};

/// `matrix` is [rows, columns] of `type` (fp16 or bf16). Throws std::invalid_argument where blocks do not fit.
[[nodiscard]] Quantized quantize(const Bytes& matrix, DataType type, std::int64_t rows, int columns,
                                 const Quantization& quantization);

/// What the quantised matrix stands for.
[[nodiscard]] std::vector<double> dequantize(const Quantized& quantized, std::int64_t rows, int columns,
                                             const Quantization& quantization);

}  // namespace commfuse::reference
