// Comparison of tensors with reports a person can read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/tensor.hpp"

namespace commfuse::reference {

/// How the bytes of a compared tensor are shown and grouped.
enum class Format { kFp16, kBf16, kFp32, kE4m3, kE2m1Pair, kByte, kWord };

[[nodiscard]] Format format_of(DataType type);
[[nodiscard]] int format_bytes(Format format);

struct CompareOptions {
  std::size_t columns = 1;     ///< elements of `format` a row, for the report
  std::size_t shown = 5;       ///< mismatches written out; all are counted
  bool any_nan_equal = false;  ///< NaN equals NaN whatever its bits (fp16, bf16, fp32, e4m3)
  std::int64_t max_ulp = 0;    ///< tolerated distance in units in the last place (fp16, bf16, fp32)
};

/// Empty when equal; otherwise what differs: how many, and row, column, bits and value of the first ones.
[[nodiscard]] std::string compare(std::string_view name, const Bytes& expected, const Bytes& actual, Format format,
                                  const CompareOptions& options = {});

/// Compares with double precision values: |expected - actual| <= absolute + relative * |expected|. NaN matches NaN, and
/// what is beyond the type's range matches infinity.
[[nodiscard]] std::string compare_near(std::string_view name, const std::vector<double>& expected, const Bytes& actual,
                                       DataType type, double relative, double absolute,
                                       const CompareOptions& options = {});

}  // namespace commfuse::reference
