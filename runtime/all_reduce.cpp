#include <algorithm>
#include <array>

#include "commfuse/operations.hpp"
#include "device/params.cuh"
#include "runtime/call_arguments.hpp"
#include "runtime/pattern.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

using runtime::Argument;

KernelSpec shape_of(const AllReduceKind& kind) noexcept {
  KernelSpec shape;
  shape.pattern = kind.pattern;
  shape.dtype = kind.dtype;
  shape.hidden_size = kind.hidden_size;
  shape.fp32_accumulate = kind.fp32_accumulate;
  shape.gamma_dtype = kind.gamma_dtype.value_or(kind.dtype);
  shape.weight_bias = kind.weight_bias;
  shape.residual_scattered = kind.residual_scattered;
  shape.quant_layout = kind.quant_layout;
  shape.group_size = kind.group_size;
  shape.latent_width = kind.latent_width;
  return shape;
}

constexpr std::size_t kArguments = 16;

/// The tensors of a call and their sizes. `used` is false for those that the pattern does not look at.
std::array<Argument, kArguments> arguments_of(const AllReduceKind& kind, const Workspace& workspace,
                                              const AllReduceTensors& tensors, std::int64_t tokens) noexcept {
  using device::Direct;
  const runtime::PatternTraits traits = runtime::traits_of(kind.pattern);
  const auto columns = static_cast<std::uint64_t>(kind.hidden_size);
  const auto rows = static_cast<std::uint64_t>(tokens);
  const std::uint64_t row = columns * static_cast<std::uint64_t>(size_of(kind.dtype));
  const auto weight = static_cast<std::uint64_t>(size_of(kind.gamma_dtype.value_or(kind.dtype)));
  const auto ranks = static_cast<std::uint64_t>(workspace.world_size());
  const std::uint64_t own_rows = rows / ranks + (static_cast<std::uint64_t>(workspace.rank()) < rows % ranks ? 1 : 0);
  const std::uint64_t residual = row * (kind.residual_scattered ? own_rows : rows);
  const bool norm = traits.norm != device::Norm::kNone;
  const bool mixture = traits.norm == device::Norm::kAttentionResidual;
  const bool latent = traits.norm == device::Norm::kLatent;
  const bool quantises = traits.quantizer != device::Quantizer::kNone;
  const bool fp4 = traits.quantizer == device::Quantizer::kFp4;
  const bool one_scale = traits.quantizer == device::Quantizer::kFp8Tensor;
  const std::uint64_t gamma = weight * (latent ? static_cast<std::uint64_t>(kind.latent_width) : columns);
  return {{
      {"in", tensors.in, true, false, row * rows, Direct::kIn},
      {"residual_in", tensors.residual_in, traits.residual, false, residual},
      {"gamma", tensors.gamma, norm, false, gamma},
      {"gamma_before", tensors.gamma_before, traits.norm == device::Norm::kPreAndPost, false, gamma},
      {"scale_factor", tensors.scale_factor, fp4 || one_scale, false, 4},
      {"mixture_max", tensors.mixture_max, mixture, false, 4 * rows},
      {"mixture_sum", tensors.mixture_sum, mixture, false, 4 * rows},
      {"mixture", tensors.mixture, mixture, false, 4 * columns * rows},
      {"score_weight", tensors.score_weight, mixture, false, row},
      {"mixture_gamma", tensors.mixture_gamma, mixture && tensors.mixture_gamma != nullptr, false, row},
      {"out", tensors.out, !norm || latent, true, row * rows, Direct::kOut},
      // With a scattered residual only the owner of a row has it.
      {"residual_out", tensors.residual_out, traits.residual, true, residual,
       kind.residual_scattered ? Direct::kCount : Direct::kResidualOut},
      {"norm_out", tensors.norm_out, traits.norm_out, true, row * rows, Direct::kNormOut},
      {"partial_norm_out", tensors.partial_norm_out, traits.partial_out, true, row * own_rows},
      {"quant_out", tensors.quant_out, quantises, true, columns * rows / (fp4 ? 2 : 1), Direct::kQuantOut},
      {"scale_out", tensors.scale_out, quantises && !one_scale, true,
       commfuse::scale_bytes(kind, tokens, tensors.scale_stride), Direct::kScaleOut},
  }};
}

/// The tensors of a call that a direct kernel can reach on all ranks.
struct RegisteredTensors {
  device::u32 wanted = 0;  ///< device::bit_of() those that a direct kernel would reach
  device::u32 found = 0;   ///< and those of them that lie in registered buffers
  std::array<const device::u64*, device::kDirectTensors> peer_offset{};
};

RegisteredTensors registered_of(const std::array<Argument, kArguments>& arguments,
                                const runtime::WorkspaceState& workspace) noexcept {
  RegisteredTensors result;
  for (const Argument& argument : arguments) {
    if (!argument.used || argument.direct == device::Direct::kCount) continue;
    result.wanted |= device::bit_of(argument.direct);
    const runtime::RegisteredRange* range = workspace.registered(argument.pointer, argument.bytes);
    if (range == nullptr) continue;
    result.found |= device::bit_of(argument.direct);
    result.peer_offset[static_cast<std::size_t>(argument.direct)] = range->peer_offset;
  }
  return result;
}

}  // namespace

std::uint64_t scale_bytes(const AllReduceKind& kind, std::int64_t tokens, std::int64_t scale_stride) noexcept {
  return runtime::scale_bytes(shape_of(kind), tokens, scale_stride);
}

AllReduce::AllReduce(const KernelSet& kernels, Workspace& workspace, const AllReduceKind& kind)
    : FusedOperation(kernels, workspace, shape_of(kind)), kind_(kind) {
  kind_.gamma_dtype = specs_.front().gamma_dtype;
  kind_.residual_scattered = specs_.front().residual_scattered;
  has_direct_ = std::any_of(specs_.begin(), specs_.end(),
                            [](const KernelSpec& spec) { return spec.algorithm == Algorithm::kDirect; });
}

Status AllReduce::launch(const AllReduceTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                         Stream stream) noexcept {
  if (tokens == 0 && !is_announced()) return {};
  if (const Status status = check_call(tokens, options); !status.ok()) return status;
  // In checking mode others may find out that they should have brought none either.
  if (tokens == 0) return announce(specs_.front(), tokens, 0, options, stream);
  const std::int64_t stride = tensors.scale_stride != 0 ? tensors.scale_stride : runtime::default_scale_stride(tokens);
  if (const Status status = runtime::check_scale_stride(stride, tokens); !status.ok()) return status;
  const std::array<Argument, kArguments> arguments = arguments_of(kind_, *workspace_, tensors, tokens);
  const RegisteredTensors registered = has_direct_ ? registered_of(arguments, *workspace_) : RegisteredTensors{};
  const Plan chosen = plan(tokens, options, registered.found != 0);
  const KernelSpec& spec = specs_[static_cast<std::size_t>(chosen.kernel)];
  // A direct call that finds everything registered stages nothing.
  const bool stages = spec.algorithm != Algorithm::kDirect || registered.found != registered.wanted;
  if (stages && required_rotation_bytes(spec, tokens) > workspace_->rotation_bytes()) {
    return {Code::kCapacity, "tokens", "need more bytes than the workspace was made for"};
  }
  if (const Status status = runtime::check_arguments(arguments); !status.ok()) return status;

  device::AllReduceParams params{};
  workspace_->fill(params);
  runtime::fill_epilogue(params, tensors, options);
  params.partial_norm_out = static_cast<device::Vec16*>(tensors.partial_norm_out);
  params.mixture_max = tensors.mixture_max;
  params.mixture_sum = tensors.mixture_sum;
  params.mixture = tensors.mixture;
  params.score_weight = tensors.score_weight;
  params.mixture_gamma = tensors.mixture_gamma;
  if (spec.algorithm == Algorithm::kDirect) {
    params.direct = registered.found;
    std::copy(registered.peer_offset.begin(), registered.peer_offset.end(), params.peer_offset);
  }
  params.scale_stride = static_cast<device::u64>(stride);
  params.tokens = static_cast<device::u32>(tokens);
  params.operation = runtime::operation_word(Op::kAllReduce, kind_.pattern);
  if (const Status status = announce(spec, tokens, static_cast<std::uint32_t>(params.direct), options, stream);
      !status.ok())
    return status;
  return start(chosen, &params, options, stream);
}

}  // namespace commfuse
