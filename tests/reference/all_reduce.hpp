// What an all-reduce and its epilogue write, bit for bit. kernel code and simulator are compared with this.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/tensor.hpp"

namespace commfuse::reference {

/// One call, seen from above: all ranks' inputs at once. Matrices are dense [tokens, hidden] of `type`.
struct AllReduceProblem {
  int world_size = 1;
  std::int64_t tokens = 0;
  int hidden = 0;
  DataType type = DataType::kBf16;
  bool fp32_accumulate = true;
  std::vector<Bytes> inputs;  ///< one matrix a rank

  Bytes add;       ///< [tokens, hidden], added to the sum before anything else and rounded; empty: nothing is
  Bytes residual;  ///< [tokens, hidden]; empty: y = S
  /// Rank r holds only its rows of the residual and adds them to its own contribution, which is rounded before the sum.
  bool residual_scattered = false;

  Bytes gamma;      ///< [hidden] of gamma_type; empty: no norm
  Bytes pre_gamma;  ///< as gamma; not empty: the sum is normalised with it before the residual is added
  std::optional<DataType> gamma_type;  ///< of both; default: `type`
  float weight_bias = 0.0f;            ///< 0 or 1
  float eps = 1e-6f;

  [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(hidden) * element_bytes(type); }
};

/// What the ranks write; the same on every rank. Ask slice_rows for the parts of a scattered residual or partial norm.
struct AllReduceResult {
  Bytes sum;           ///< S
  Bytes residual_out;  ///< y
  Bytes norm_out;      ///< empty without gamma
};

/// Throws std::invalid_argument where the problem is inconsistent.
[[nodiscard]] AllReduceResult all_reduce(const AllReduceProblem& problem);

/// S of one element, from the ranks' widened contributions in rank order.
[[nodiscard]] float reduce_element(const std::vector<float>& contributions, DataType type, bool fp32_accumulate);

}  // namespace commfuse::reference
