#include "runtime/call_header.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>

#include "runtime/pattern.hpp"

namespace commfuse::runtime {
namespace {

constexpr std::array<std::string_view, device::kCallWords> kNames = {
    "generation",  "epoch",    "epoch",   "operation", "dtype",
    "hidden_size", "tokens",   "options", "width",     "rows of ranks or registered tensors",
    "eps",         "algorithm"};

/// Bits of the word of options. The layout of scales is a number of two bits above them.
enum Option : std::uint32_t {
  kFp32Accumulate = 1U << 0,
  kResidualScattered = 1U << 1,
  kWeightBias = 1U << 2,
  kFp32Gamma = 1U << 3,
};
constexpr unsigned kLayoutShift = 4;

std::string describe_options(std::uint32_t bits) {
  std::string text;
  const auto add = [&](std::uint32_t bit, std::string_view name) {
    if ((bits & bit) == 0) return;
    if (!text.empty()) text += ", ";
    text += name;
  };
  add(kFp32Accumulate, "fp32_accumulate");
  add(kResidualScattered, "residual_scattered");
  add(kWeightBias, "weight_bias");
  add(kFp32Gamma, "fp32 gamma");
  const auto layout = static_cast<QuantLayout>(bits >> kLayoutShift & 3);
  if (layout != QuantLayout::kSwizzled128x4) add(~0U, to_string(layout));
  return text.empty() ? "none" : text;
}

}  // namespace

std::string operation_name(std::uint32_t word) {
  const std::string_view op = to_string(op_of(word));
  const std::string_view pattern = to_string(pattern_of(word));
  return op == pattern ? std::string(op) : fmt::format("{} {}", op, pattern);
}

CallHeader::CallHeader(const KernelSpec& spec, std::int64_t tokens, std::uint32_t rows_of_ranks, float eps) noexcept {
  word[device::kOperationWord] = operation_word(spec.op, spec.pattern);
  word[device::kDtypeWord] = static_cast<device::u32>(spec.dtype);
  word[device::kHiddenSizeWord] = static_cast<device::u32>(spec.hidden_size);
  word[device::kTokensWord] = static_cast<device::u32>(tokens);
  word[device::kOptionsWord] =
      (spec.fp32_accumulate ? kFp32Accumulate : 0U) | (spec.residual_scattered ? kResidualScattered : 0U) |
      (spec.weight_bias ? kWeightBias : 0U) | (spec.gamma_dtype == DataType::kFp32 ? kFp32Gamma : 0U) |
      static_cast<std::uint32_t>(spec.quant_layout) << kLayoutShift;
  // No pattern has two of these.
  word[device::kWidthWord] = static_cast<device::u32>(spec.group_size + spec.latent_width) +
                             (static_cast<device::u32>(spec.q_lora_rank) << 16) +
                             static_cast<device::u32>(spec.kv_lora_rank);
  word[device::kRowsWord] = rows_of_ranks;
  word[device::kEpsWord] = std::bit_cast<device::u32>(eps);
  word[device::kAlgorithmWord] = static_cast<device::u32>(spec.algorithm);
}

std::string_view call_word_name(std::uint32_t word) noexcept {
  return word < kNames.size() ? kNames[word] : std::string_view();
}

std::string describe_call_word(std::string_view name, std::uint32_t value) {
  if (name == "operation") return operation_name(value);
  if (name == "dtype") return std::string(to_string(static_cast<DataType>(value)));
  if (name == "algorithm") return std::string(to_string(static_cast<Algorithm>(value)));
  if (name == "options") return describe_options(value);
  if (name == "eps") return fmt::format("{}", std::bit_cast<float>(value));
  return std::to_string(value);
}

}  // namespace commfuse::runtime
