// What a rank announces of a call in checking mode (templates/call_check.cuh), and the words for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "commfuse/spec.hpp"
#include "device/params.cuh"

namespace commfuse::runtime {

/// The number by which kernels know an operation (AllReduceParams::operation).
[[nodiscard]] constexpr std::uint32_t operation_code(Op op, Pattern pattern) noexcept {
  return static_cast<std::uint32_t>(op) << 8 | static_cast<std::uint32_t>(pattern);
}
/// Its name, for messages.
[[nodiscard]] std::string_view operation_name(std::uint32_t code) noexcept;

/// The header of a call of `spec`. Its words of generation and epoch are left to the kernel.
struct CallHeader {
  device::u32 word[device::kCallWords] = {};

  CallHeader(const KernelSpec& spec, std::int64_t tokens, float eps) noexcept;
};

/// The name of a word of the header ("hidden_size"); empty for a number that is none. kEpochHighWord is "epoch" too.
[[nodiscard]] std::string_view call_word_name(std::uint32_t word) noexcept;
/// A value of the word of that name in words ("bf16", "5", "fp32_accumulate, weight_bias").
[[nodiscard]] std::string describe_call_word(std::string_view name, std::uint32_t value);

}  // namespace commfuse::runtime
