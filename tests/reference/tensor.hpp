// Tensors of the reference: dense row-major rows of raw bytes, as a GPU holds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "commfuse/spec.hpp"

namespace commfuse::reference {

using Bytes = std::vector<std::uint8_t>;

[[nodiscard]] int element_bytes(DataType type);

/// Elements `first` to `first + count` widened to fp32.
[[nodiscard]] std::vector<float> widen(const Bytes& bytes, DataType type, std::size_t first, std::size_t count);
/// RN_T: rounds to nearest even and writes at element `first`. Every NaN becomes the type's canonical one.
void narrow(std::span<const float> values, DataType type, Bytes& bytes, std::size_t first);
/// RN_T of one value, widened again.
[[nodiscard]] float round_to(DataType type, float value);

/// The rows of `tokens` that a rank owns: balanced, contiguous, one more row for the lowest ranks.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
[[nodiscard]] Rows rows_of_rank(std::int64_t tokens, int world_size, int rank);
[[nodiscard]] int owner_of_row(std::int64_t tokens, int world_size, std::int64_t row);
/// A rank's rows of a matrix of `row_bytes` a row.
[[nodiscard]] Bytes slice_rows(const Bytes& matrix, std::size_t row_bytes, Rows rows);

}  // namespace commfuse::reference
