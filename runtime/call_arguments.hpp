// The tensors of a call, for the checks before anything is launched.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "commfuse/error.hpp"
#include "commfuse/operations.hpp"
#include "commfuse/spec.hpp"
#include "device/params.cuh"

namespace commfuse::runtime {

/// More tokens than any call has.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;

struct Argument {
  std::string_view name;
  const void* pointer = nullptr;
  bool used = false;  ///< false: the pattern does not look at it
  bool output = false;
  std::uint64_t bytes = 0;                         ///< 0: nothing is accessed, so nothing needs to be there
  device::Direct direct = device::Direct::kCount;  ///< which tensor of a direct kernel it is; kCount: none
};

/// kInvalidArgument naming an argument that is missing, misaligned, or in memory that another one lies in. An output
/// may be the very same memory as an input.
[[nodiscard]] Status check_arguments(std::span<const Argument> arguments) noexcept;

/// What scale_out must have for `rows` rows of such a kernel.
[[nodiscard]] std::uint64_t scale_bytes(const KernelSpec& spec, std::int64_t rows, std::int64_t stride) noexcept;
/// The stride of column-major scales of `rows` rows, where the caller gives none.
[[nodiscard]] constexpr std::int64_t default_scale_stride(std::int64_t rows) noexcept { return (rows + 3) / 4 * 4; }
[[nodiscard]] Status check_scale_stride(std::int64_t stride, std::int64_t rows) noexcept;

/// What the options and those tensors that every reducing operation has become in the parameter block.
template <typename Tensors>
void fill_epilogue(device::AllReduceParams& params, const Tensors& tensors, const LaunchOptions& options) noexcept {
  params.in = static_cast<const device::Vec16*>(tensors.in);
  params.residual_in = static_cast<const device::Vec16*>(tensors.residual_in);
  params.gamma = tensors.gamma;
  params.gamma_before = tensors.gamma_before;
  params.out = static_cast<device::Vec16*>(tensors.out);
  params.residual_out = static_cast<device::Vec16*>(tensors.residual_out);
  params.norm_out = static_cast<device::Vec16*>(tensors.norm_out);
  params.quant_out = tensors.quant_out;
  params.scale_out = tensors.scale_out;
  params.scale_factor = tensors.scale_factor;
  params.flags = (options.trigger_early ? device::kTriggerEarly : 0U) |
                 (options.zero_scale_padding ? device::kZeroScalePadding : 0U);
  params.eps = options.eps;
}

}  // namespace commfuse::runtime
