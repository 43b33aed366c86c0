// Epilogues beyond residual, norm and quantisation, bit for bit.
#pragma once

#include "reference/tensor.hpp"

namespace commfuse::reference {

/// Rows [latent | rest]: the first `latent_width` columns are RMS-normalised among themselves, the rest is copied.
/// `gamma` is [latent_width] of gamma_type.
[[nodiscard]] Bytes latent_norm(const Bytes& sum, DataType type, std::int64_t rows, int columns, int latent_width,
                                const Bytes& gamma, DataType gamma_type, float eps, float weight_bias = 0.0f);

/// Columns `first` to `first + width` of every row, RMS-normalised over themselves: [rows, width]. The squares are
/// added in the order of the whole row, in which the other columns count as zero. `gamma` is [width] of gamma_type.
[[nodiscard]] Bytes part_norm(const Bytes& matrix, DataType type, std::int64_t rows, int columns, int first, int width,
                              const Bytes& gamma, DataType gamma_type, float eps, float weight_bias);

/// Merges y with the running state of an attention over earlier residuals.
struct AttentionResidual {
  std::vector<float> maximum;      ///< [rows]: largest logit so far
  std::vector<float> denominator;  ///< [rows]
  std::vector<float> accumulator;  ///< [rows, columns]
  Bytes gamma;                     ///< [columns] of the activation type
  Bytes residual_weight;           ///< [columns]
  Bytes out_weight;                ///< [columns]; empty: the mix is not normalised
  float eps = 1e-6f;
};
/// logit = dot(y, gamma * residual_weight) * rms(y); top = max(maximum, logit), of which a NaN operand is ignored;
/// c = exp(maximum - top), w = exp(logit - top); mix = RN_T((accumulator * c + w * y) / (denominator * c + w)), with
/// one fused multiply-add above and one below the line; then RMSNorm(mix) * out_weight.
[[nodiscard]] Bytes attn_res_combine(const Bytes& y, DataType type, std::int64_t rows, int columns,
                                     const AttentionResidual& state);

/// exp(x) for x <= 0, by a fixed sequence of roundings (error below one unit in the last place); NaN stays NaN.
[[nodiscard]] float canonical_exp(float x);

}  // namespace commfuse::reference
