// What each pattern does, in the terms of the kernel templates: one table that the generator, the checks of a call and
// the planner read.
#pragma once

#include "commfuse/spec.hpp"
#include "device/types.cuh"

namespace commfuse::runtime {

struct PatternTraits {
  device::Norm norm = device::Norm::kRms;
  device::Quantizer quantizer = device::Quantizer::kNone;
  bool residual = true;      ///< reads residual_in, writes residual_out
  bool norm_out = true;      ///< writes the normalised rows
  bool partial_out = false;  ///< writes the normalised own rows
};

[[nodiscard]] constexpr PatternTraits traits_of(Pattern pattern) noexcept {
  using device::Norm;
  using device::Quantizer;
  switch (pattern) {
    case Pattern::kAllReduce:
      return {.norm = Norm::kNone, .residual = false, .norm_out = false};
    case Pattern::kResidualRmsNorm:
      return {};
    case Pattern::kResidualRmsNormFp8:
      return {.quantizer = Quantizer::kFp8Tensor, .norm_out = false};
    case Pattern::kResidualRmsNormFp4:
      return {.quantizer = Quantizer::kFp4, .norm_out = false};
    case Pattern::kResidualRmsNormOutFp8:
      return {.quantizer = Quantizer::kFp8Tensor};
    case Pattern::kResidualRmsNormOutFp4:
      return {.quantizer = Quantizer::kFp4};
    case Pattern::kResidualRmsNormFp8Block:
      return {.quantizer = Quantizer::kFp8Block, .norm_out = false};
    case Pattern::kResidualRmsNormPartialOutFp8Block:
      return {.quantizer = Quantizer::kFp8Block, .norm_out = false, .partial_out = true};
    case Pattern::kResidualRmsNormPartialOut:
      return {.norm_out = false, .partial_out = true};
    case Pattern::kAttnResCombine:
      return {.norm = Norm::kAttentionResidual};
    case Pattern::kLatentNorm:
      return {.norm = Norm::kLatent, .residual = false, .norm_out = false};
    case Pattern::kResidualRmsNormFp8Token:
      return {.quantizer = Quantizer::kFp8Token};
    case Pattern::kResidualRmsNormFp8Group:
      return {.quantizer = Quantizer::kFp8Group};
    case Pattern::kRmsNorm:
      return {.residual = false};
    case Pattern::kResidualRmsPrePostNorm:
      return {.norm = Norm::kPreAndPost};
  }
  return {};
}

/// Columns that share one scale; 1 where the whole row or tensor does.
[[nodiscard]] constexpr int scale_columns(const KernelSpec& spec) noexcept {
  switch (traits_of(spec.pattern).quantizer) {
    case device::Quantizer::kFp8Block:
      return 128;
    case device::Quantizer::kFp8Group:
      return spec.group_size;
    case device::Quantizer::kFp4:
      return 16;
    default:
      return 1;
  }
}

/// Whether a kernel's threads need the whole row (a norm, or a scattered residual), or each vector stands for itself.
[[nodiscard]] constexpr bool needs_whole_row(Pattern pattern) noexcept {
  return traits_of(pattern).norm != device::Norm::kNone;
}

}  // namespace commfuse::runtime
