// RMSNorm of one row, with the order of every addition fixed by the row's length alone.
//
// The canonical sum: a row is vectors of 16 bytes. Each vector folds its products in order with fma, from 0. 32
// consecutive vectors are a group (vectors beyond the row count as 0.0) that a butterfly over xor 16, 8, 4, 2, 1 adds
// up. The groups' sums are dealt to 32 lanes, each of which folds its own (l, l + 32, ...) in ascending order from 0.0;
// the same butterfly then adds the lanes.
#pragma once

#include <span>
#include <vector>

#include "reference/tensor.hpp"

namespace commfuse::reference {

/// Canonical sum of a[i] * b[i]; `vector_elements` is 16 bytes' worth of the stored type.
[[nodiscard]] float canonical_dot(std::span<const float> a, std::span<const float> b, int vector_elements);

/// 1 / sqrt(sum_of_squares / length + eps), each step rounded.
[[nodiscard]] float reciprocal_rms(float sum_of_squares, std::size_t length, float eps);

/// RN_T((row * rms) * weight), widened. `weight` is fp32(gamma), with weight_bias already added.
[[nodiscard]] std::vector<float> rms_norm(std::span<const float> row, std::span<const float> weight, float eps,
                                          DataType type);

/// fp32(gamma), plus `weight_bias` (rounded) where that is not 0.
[[nodiscard]] std::vector<float> norm_weight(const Bytes& gamma, DataType gamma_type, std::size_t length,
                                             float weight_bias);

}  // namespace commfuse::reference
