// What a rank announces of a call in checking mode (templates/call_check.cuh), and the words for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "commfuse/spec.hpp"
#include "device/params.cuh"

namespace commfuse::runtime {

/// The name of an operation with its pattern, for messages; `word` as operation_word() makes it.
[[nodiscard]] std::string operation_name(std::uint32_t word);

/// The header of a call of `spec`; `rows_of_ranks` stands for runs of rows that are not balanced (0: they are). Its
/// words of generation and epoch are left to the kernel.
struct CallHeader {
  device::u32 word[device::kCallWords] = {};

  CallHeader(const KernelSpec& spec, std::int64_t tokens, std::uint32_t rows_of_ranks, float eps) noexcept;
};

/// The name of a word of the header ("hidden_size"); empty for a number that is none. kEpochHighWord is "epoch" too.
[[nodiscard]] std::string_view call_word_name(std::uint32_t word) noexcept;
/// A value of the word of that name in words ("bf16", "5", "fp32_accumulate, weight_bias").
[[nodiscard]] std::string describe_call_word(std::string_view name, std::uint32_t value);

}  // namespace commfuse::runtime
