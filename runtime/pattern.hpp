// What each pattern does, in the terms of the kernel templates: one table that the generator, the checks of a call and
// the planner read.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "commfuse/spec.hpp"
#include "device/types.cuh"

namespace commfuse::runtime {

struct PatternTraits {
  device::Norm norm = device::Norm::kRms;
  device::Quantizer quantizer = device::Quantizer::kNone;
  bool residual = true;      ///< reads residual_in, writes residual_out
  bool add = false;          ///< reads add_in
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
    case Pattern::kReduceScatter:
      return {.norm = Norm::kNone, .residual = false, .norm_out = false};
    case Pattern::kAddResidualRmsNorm:
      return {.add = true};
    case Pattern::kAddResidualRmsNormFp8Block:
      return {.quantizer = Quantizer::kFp8Block, .add = true, .norm_out = false};
    case Pattern::kAllGather:
      return {.norm = Norm::kNone, .residual = false, .norm_out = false};
    case Pattern::kDualRmsNorm:
      return {.norm = Norm::kDual, .residual = false};
    case Pattern::kDualRmsNormFp8Block:
      return {.norm = Norm::kDual, .quantizer = Quantizer::kFp8Block, .residual = false};
  }
  return {};
}

/// A pattern of an operation and its code (commfuse::pattern_code).
struct CodedPattern {
  Pattern pattern;
  int code;
};

/// In the order of the codes.
inline constexpr std::array kAllReducePatterns = {
    CodedPattern{Pattern::kAllReduce, 0},
    CodedPattern{Pattern::kResidualRmsNorm, 1},
    CodedPattern{Pattern::kResidualRmsNormFp8, 2},
    CodedPattern{Pattern::kResidualRmsNormFp4, 3},
    CodedPattern{Pattern::kResidualRmsNormOutFp8, 4},
    CodedPattern{Pattern::kResidualRmsNormOutFp4, 5},
    CodedPattern{Pattern::kResidualRmsNormFp8Block, 6},
    CodedPattern{Pattern::kResidualRmsNormPartialOutFp8Block, 7},
    CodedPattern{Pattern::kResidualRmsNormPartialOut, 8},
    CodedPattern{Pattern::kAttnResCombine, 9},
    CodedPattern{Pattern::kLatentNorm, 10},
    CodedPattern{Pattern::kResidualRmsNormFp8Token, 11},
    CodedPattern{Pattern::kResidualRmsNormFp8Group, 12},
    CodedPattern{Pattern::kRmsNorm, 13},
    CodedPattern{Pattern::kResidualRmsPrePostNorm, 14},
};
inline constexpr std::array kReduceScatterPatterns = {
    CodedPattern{Pattern::kReduceScatter, 0},
    CodedPattern{Pattern::kResidualRmsNorm, 1},
    CodedPattern{Pattern::kResidualRmsNormFp8, 2},
    CodedPattern{Pattern::kResidualRmsNormFp4, 3},
    CodedPattern{Pattern::kResidualRmsNormOutFp8, 4},
    CodedPattern{Pattern::kResidualRmsNormOutFp4, 5},
    CodedPattern{Pattern::kResidualRmsNormFp8Block, 6},
    CodedPattern{Pattern::kAddResidualRmsNormFp8Block, 7},
    CodedPattern{Pattern::kAddResidualRmsNorm, 8},
    CodedPattern{Pattern::kResidualRmsNormFp8Token, 11},
    CodedPattern{Pattern::kResidualRmsNormFp8Group, 12},
    CodedPattern{Pattern::kRmsNorm, 13},
    CodedPattern{Pattern::kResidualRmsPrePostNorm, 14},
};

inline constexpr std::array kAllGatherPatterns = {
    CodedPattern{Pattern::kAllGather, 0},
    CodedPattern{Pattern::kDualRmsNorm, 1},
    CodedPattern{Pattern::kDualRmsNormFp8Block, 2},
};

[[nodiscard]] constexpr std::span<const CodedPattern> coded_patterns(Op op) noexcept {
  switch (op) {
    case Op::kAllReduce:
      return kAllReducePatterns;
    case Op::kReduceScatter:
      return kReduceScatterPatterns;
    case Op::kAllGather:
      return kAllGatherPatterns;
    case Op::kCallCheck:
      break;
  }
  return {};
}

/// What the parameter block and the mailbox call an operation with its pattern.
[[nodiscard]] constexpr std::uint32_t operation_word(Op op, Pattern pattern) noexcept {
  return static_cast<std::uint32_t>(op) << 16 | static_cast<std::uint32_t>(pattern);
}
[[nodiscard]] constexpr Op op_of(std::uint32_t operation_word) noexcept {
  return static_cast<Op>(operation_word >> 16);
}
[[nodiscard]] constexpr Pattern pattern_of(std::uint32_t operation_word) noexcept {
  return static_cast<Pattern>(operation_word & 0xffffu);
}

/// The algorithms that an operation has kernels for.
inline constexpr std::array kAllReduceAlgorithms = {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kDirect};
inline constexpr std::array kOneAlgorithm = {Algorithm::kOneShot};
[[nodiscard]] constexpr std::span<const Algorithm> algorithms_of(Op op) noexcept {
  if (op == Op::kAllReduce) return kAllReduceAlgorithms;
  return kOneAlgorithm;
}

/// Whether a kernel writes the normalised rows where the call has a place for them, though its pattern does not name
/// them. (The interfaces that reduce-scatter patterns come from write them always.)
[[nodiscard]] constexpr bool has_optional_norm_out(const KernelSpec& spec) noexcept {
  const PatternTraits traits = traits_of(spec.pattern);
  return spec.op == Op::kReduceScatter && traits.norm != device::Norm::kNone && !traits.norm_out;
}

/// Columns that the quantizer works on.
[[nodiscard]] constexpr int quantized_columns(const KernelSpec& spec) noexcept {
  return traits_of(spec.pattern).norm == device::Norm::kDual ? spec.q_lora_rank : spec.hidden_size;
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
