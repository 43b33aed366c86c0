#include "reference/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "reference/formats.hpp"

namespace commfuse::reference {
namespace {

constexpr int kFp8Columns = 128;
constexpr int kFp4Columns = 16;

/// Columns that share a scale; 0 for none.
int block_columns(const Quantization& q, int columns) {
  switch (q.quantizer) {
    case Quantizer::kFp8Tensor:
      return 0;
    case Quantizer::kFp8Block:
      return kFp8Columns;
    case Quantizer::kFp8Token:
      return columns;
    case Quantizer::kFp8Group:
      return q.group;
    case Quantizer::kFp4:
      return kFp4Columns;
  }
  return 0;
}

std::size_t stride_of(const Quantization& q, std::int64_t rows) {
  return static_cast<std::size_t>(q.scale_stride != 0 ? q.scale_stride : (rows + 3) / 4 * 4);
}

/// Of numbers only: a NaN does not count.
float absolute_maximum(std::span<const float> values) {
  float maximum = 0.0f;
  for (const float v : values) maximum = std::abs(v) > maximum ? std::abs(v) : maximum;
  return maximum;
}

float larger(float a, float b) { return b > a ? b : a; }

/// Column-major scales of `columns` columns of `rows` elements of 4 bytes, in the smallest storage that holds them.
class ColumnMajor {
 public:
  ColumnMajor(Bytes& bytes, std::int64_t rows, std::size_t columns, const Quantization& q)
      : bytes_(bytes), rows_(static_cast<std::size_t>(rows)), columns_(columns), stride_(stride_of(q, rows)) {
    if (stride_ < rows_ || stride_ % 4 != 0) throw std::invalid_argument("reference: unusable scale stride");
    if (rows_ > 0 && columns_ > 0) bytes_.assign(((columns_ - 1) * stride_ + rows_) * 4, q.untouched);
  }
  void put(std::size_t row, std::size_t column, const void* word) {
    std::memcpy(bytes_.data() + (column * stride_ + row) * 4, word, 4);
  }
  void zero_padding() {
    for (std::size_t column = 0; rows_ > 0 && column + 1 < columns_; ++column) {
      std::memset(bytes_.data() + (column * stride_ + rows_) * 4, 0, (stride_ - rows_) * 4);
    }
  }

 private:
  Bytes& bytes_;
  std::size_t rows_, columns_, stride_;
};

void quantize_fp8(std::span<const float> x, float multiplier, std::uint8_t* out) {
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = to_e4m3(x[i] * multiplier);
}

/// Returns the scale byte.
std::uint8_t quantize_fp4_block(std::span<const float> x, float global_scale, std::uint8_t* out) {
  const float sixth = absolute_maximum(x) * (1.0f / 6.0f);
  const float wanted = global_scale * sixth;
  const std::uint8_t scale = to_e4m3(wanted > 0.0f ? wanted : 0.0f);  // also where it is NaN: 0 * infinity
  const float decoded = from_e4m3(scale);
  const float multiplier = decoded == 0.0f ? 0.0f : global_scale / decoded;
  for (std::size_t i = 0; i < x.size(); i += 2) {
    out[i / 2] = static_cast<std::uint8_t>(to_e2m1(x[i] * multiplier) | to_e2m1(x[i + 1] * multiplier) << 4);
  }
  return scale;
}

struct Ue8m0 {
  std::uint8_t code;
  float inverse;
};

Ue8m0 group_scale(float amax) {
  const float least = larger(amax / 448.0f, 1e-10f);
  int exponent = 127;  // where it is infinite: the largest there is
  if (!std::isinf(least)) {
    exponent = std::ilogb(least);
    if (std::ldexp(1.0f, exponent) < least) ++exponent;
    exponent = std::min(exponent, 127);
  }
  return {static_cast<std::uint8_t>(exponent + 127), std::ldexp(1.0f, -exponent)};
}

class Quantize {
 public:
  Quantize(const Bytes& matrix, DataType type, std::int64_t rows, int columns, const Quantization& q)
      : matrix_(matrix), type_(type), rows_(rows), columns_(static_cast<std::size_t>(columns)), q_(q) {}

  Quantized run() {
    const bool fp4 = q_.quantizer == Quantizer::kFp4;
    result_.values.resize(static_cast<std::size_t>(rows_) * (fp4 ? columns_ / 2 : columns_));
    switch (q_.quantizer) {
      case Quantizer::kFp8Tensor:
        tensor();
        break;
      case Quantizer::kFp8Block:
        block();
        break;
      case Quantizer::kFp8Token:
        token();
        break;
      case Quantizer::kFp8Group:
        group();
        break;
      case Quantizer::kFp4:
        fp4_blocks();
        break;
    }
    return std::move(result_);
  }

 private:
  std::vector<float> row(std::size_t r) const { return widen(matrix_, type_, r * columns_, columns_); }
  std::size_t rows() const { return static_cast<std::size_t>(rows_); }

  void tensor() {
    const float inverse = 1.0f / q_.scale_factor;
    for (std::size_t r = 0; r < rows(); ++r) quantize_fp8(row(r), inverse, &result_.values[r * columns_]);
  }

  void block() {
    const std::size_t blocks = columns_ / kFp8Columns;
    ColumnMajor scales(result_.scales, rows_, blocks, q_);
    for (std::size_t r = 0; r < rows(); ++r) {
      const std::vector<float> x = row(r);
      for (std::size_t b = 0; b < blocks; ++b) {
        const auto part = std::span(x).subspan(b * kFp8Columns, kFp8Columns);
        const float scale = larger(absolute_maximum(part), 1e-10f) / 448.0f;
        scales.put(r, b, &scale);
        quantize_fp8(part, 1.0f / scale, &result_.values[r * columns_ + b * kFp8Columns]);
      }
    }
    if (q_.zero_padding) scales.zero_padding();
  }

  void token() {
    result_.scales.resize(rows() * 4);
    for (std::size_t r = 0; r < rows(); ++r) {
      const std::vector<float> x = row(r);
      const float scale = larger(absolute_maximum(x) / 448.0f, 0x1p-9f / 448.0f);
      std::memcpy(&result_.scales[r * 4], &scale, 4);
      for (std::size_t i = 0; i < columns_; ++i) result_.values[r * columns_ + i] = to_e4m3(x[i] / scale);
    }
  }

  void group() {
    const auto size = static_cast<std::size_t>(q_.group);
    const std::size_t groups = columns_ / size;
    ColumnMajor scales(result_.scales, rows_, (groups + 3) / 4, q_);
    for (std::size_t r = 0; r < rows(); ++r) {
      const std::vector<float> x = row(r);
      std::vector<std::uint8_t> codes((groups + 3) / 4 * 4, 0);
      for (std::size_t g = 0; g < groups; ++g) {
        const auto part = std::span(x).subspan(g * size, size);
        const Ue8m0 scale = group_scale(absolute_maximum(part));
        codes[g] = scale.code;
        quantize_fp8(part, scale.inverse, &result_.values[r * columns_ + g * size]);
      }
      for (std::size_t word = 0; word * 4 < groups; ++word) scales.put(r, word, &codes[word * 4]);
    }
    if (q_.zero_padding) scales.zero_padding();
  }

  void fp4_blocks() {
    const std::size_t blocks = columns_ / kFp4Columns;
    result_.scales.assign(fp4_scale_bytes(q_.layout, rows(), blocks), q_.zero_padding ? 0 : q_.untouched);
    for (std::size_t r = 0; r < rows(); ++r) {
      const std::vector<float> x = row(r);
      for (std::size_t b = 0; b < blocks; ++b) {
        std::uint8_t* out = &result_.values[(r * columns_ + b * kFp4Columns) / 2];
        const auto part = std::span(x).subspan(b * kFp4Columns, kFp4Columns);
        result_.scales[fp4_scale_offset(q_.layout, r, b, blocks)] = quantize_fp4_block(part, q_.scale_factor, out);
      }
    }
  }

  const Bytes& matrix_;
  DataType type_;
  std::int64_t rows_;
  std::size_t columns_;
  const Quantization& q_;
  Quantized result_;
};

double scale_at(const Quantized& m, std::size_t row, std::size_t column, std::size_t columns, std::int64_t rows,
                const Quantization& q) {
  const std::size_t stride = stride_of(q, rows);
  float scale = 1.0f;
  switch (q.quantizer) {
    case Quantizer::kFp8Tensor:
      return static_cast<double>(q.scale_factor);
    case Quantizer::kFp8Block:
      std::memcpy(&scale, &m.scales[(column / kFp8Columns * stride + row) * 4], 4);
      break;
    case Quantizer::kFp8Token:
      std::memcpy(&scale, &m.scales[row * 4], 4);
      break;
    case Quantizer::kFp8Group: {
      const std::size_t g = column / static_cast<std::size_t>(q.group);
      return std::ldexp(1.0, m.scales[(g / 4 * stride + row) * 4 + g % 4] - 127);
    }
    case Quantizer::kFp4: {
      const std::size_t offset = fp4_scale_offset(q.layout, row, column / kFp4Columns, columns / kFp4Columns);
      return static_cast<double>(from_e4m3(m.scales[offset])) / static_cast<double>(q.scale_factor);
    }
  }
  return static_cast<double>(scale);
}

}  // namespace

Quantized quantize(const Bytes& matrix, DataType type, std::int64_t rows, int columns, const Quantization& q) {
  if (type == DataType::kFp32) throw std::invalid_argument("reference: fp32 matrices are not quantised");
  const int block = block_columns(q, columns);
  if (columns < 1 || (block != 0 && columns % block != 0)) {
    throw std::invalid_argument("reference: the columns are not a whole number of blocks");
  }
  return Quantize(matrix, type, rows, columns, q).run();
}

std::vector<double> dequantize(const Quantized& m, std::int64_t rows, int columns, const Quantization& q) {
  const auto width = static_cast<std::size_t>(columns);
  std::vector<double> values(static_cast<std::size_t>(rows) * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    float code = 0;
    if (q.quantizer == Quantizer::kFp4) {
      code = from_e2m1(static_cast<std::uint8_t>(m.values[i / 2] >> (i % 2 * 4) & 0xf));
    } else {
      code = from_e4m3(m.values[i]);
    }
    values[i] = static_cast<double>(code) * scale_at(m, i / width, i % width, width, rows, q);
  }
  return values;
}

}  // namespace commfuse::reference
