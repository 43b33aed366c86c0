// The names of everything in spec.hpp that a deployment file can say: one table for each enumeration, used for reading,
// writing and error messages alike. A test keeps schemas/deployment.schema.json equal to them.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "commfuse/spec.hpp"

namespace commfuse::runtime {

template <typename Enum>
struct Named {
  Enum value;
  std::string_view name;
};

/// Specialised below: the values of Enum in the order of their numbers.
template <typename Enum>
inline constexpr int kNames = 0;

template <>
inline constexpr std::array kNames<Op> = {
    Named<Op>{Op::kAllReduce, "all_reduce"},
    Named<Op>{Op::kReduceScatter, "reduce_scatter"},
    Named<Op>{Op::kAllGather, "all_gather"},
    Named<Op>{Op::kCallCheck, "call_check"},
};

template <>
inline constexpr std::array kNames<Pattern> = {
    Named<Pattern>{Pattern::kAllReduce, "all_reduce"},
    Named<Pattern>{Pattern::kResidualRmsNorm, "residual_rms_norm"},
    Named<Pattern>{Pattern::kResidualRmsNormFp8, "residual_rms_norm_fp8"},
    Named<Pattern>{Pattern::kResidualRmsNormFp4, "residual_rms_norm_fp4"},
    Named<Pattern>{Pattern::kResidualRmsNormOutFp8, "residual_rms_norm_out_fp8"},
    Named<Pattern>{Pattern::kResidualRmsNormOutFp4, "residual_rms_norm_out_fp4"},
    Named<Pattern>{Pattern::kResidualRmsNormFp8Block, "residual_rms_norm_fp8_block"},
    Named<Pattern>{Pattern::kResidualRmsNormPartialOutFp8Block, "residual_rms_norm_partial_out_fp8_block"},
    Named<Pattern>{Pattern::kResidualRmsNormPartialOut, "residual_rms_norm_partial_out"},
    Named<Pattern>{Pattern::kAttnResCombine, "attn_res_combine"},
    Named<Pattern>{Pattern::kLatentNorm, "latent_norm"},
    Named<Pattern>{Pattern::kResidualRmsNormFp8Token, "residual_rms_norm_fp8_token"},
    Named<Pattern>{Pattern::kResidualRmsNormFp8Group, "residual_rms_norm_fp8_group"},
    Named<Pattern>{Pattern::kRmsNorm, "rms_norm"},
    Named<Pattern>{Pattern::kResidualRmsPrePostNorm, "residual_rms_pre_post_norm"},
    Named<Pattern>{Pattern::kReduceScatter, "reduce_scatter"},
    Named<Pattern>{Pattern::kAddResidualRmsNorm, "add_residual_rms_norm"},
    Named<Pattern>{Pattern::kAddResidualRmsNormFp8Block, "add_residual_rms_norm_fp8_block"},
    Named<Pattern>{Pattern::kAllGather, "all_gather"},
    Named<Pattern>{Pattern::kDualRmsNorm, "dual_rms_norm"},
    Named<Pattern>{Pattern::kDualRmsNormFp8Block, "dual_rms_norm_fp8_block"},
};

template <>
inline constexpr std::array kNames<Algorithm> = {
    Named<Algorithm>{Algorithm::kOneShot, "one_shot"},
    Named<Algorithm>{Algorithm::kTwoShot, "two_shot"},
    Named<Algorithm>{Algorithm::kDirect, "direct"},
};

template <>
inline constexpr std::array kNames<QuantLayout> = {
    Named<QuantLayout>{QuantLayout::kSwizzled128x4, "swizzled_128x4"},
    Named<QuantLayout>{QuantLayout::kSwizzled8x4, "swizzled_8x4"},
    Named<QuantLayout>{QuantLayout::kLinear, "linear"},
};

template <>
inline constexpr std::array kNames<DataType> = {
    Named<DataType>{DataType::kFp16, "fp16"},
    Named<DataType>{DataType::kBf16, "bf16"},
    Named<DataType>{DataType::kFp32, "fp32"},
};

/// The name of a value, or an empty text for a number that is no enumerator.
template <typename Enum>
[[nodiscard]] constexpr std::string_view name_of(Enum value) noexcept {
  for (const auto& entry : kNames<Enum>) {
    if (entry.value == value) return entry.name;
  }
  return {};
}

template <typename Enum>
[[nodiscard]] constexpr std::optional<Enum> value_of(std::string_view name) noexcept {
  for (const auto& entry : kNames<Enum>) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

}  // namespace commfuse::runtime
