#include <algorithm>
#include <array>

#include "commfuse/operations.hpp"
#include "device/params.cuh"
#include "runtime/call_arguments.hpp"
#include "runtime/pattern.hpp"
#include "runtime/row_partition.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

using runtime::Argument;
using runtime::RowPartition;

KernelSpec shape_of(const ReduceScatterKind& kind) noexcept {
  KernelSpec shape;
  shape.op = Op::kReduceScatter;
  shape.pattern = kind.pattern;
  shape.dtype = kind.dtype;
  shape.hidden_size = kind.hidden_size;
  shape.fp32_accumulate = kind.fp32_accumulate;
  shape.gamma_dtype = kind.gamma_dtype.value_or(kind.dtype);
  shape.weight_bias = kind.weight_bias;
  shape.quant_layout = kind.quant_layout;
  shape.group_size = kind.group_size;
  return shape;
}

constexpr std::size_t kArguments = 11;

/// The tensors of a call and their sizes.
std::array<Argument, kArguments> arguments_of(const KernelSpec& spec, const ReduceScatterTensors& tensors,
                                              std::int64_t all_rows, std::int64_t own_rows) noexcept {
  const runtime::PatternTraits traits = runtime::traits_of(spec.pattern);
  const auto columns = static_cast<std::uint64_t>(spec.hidden_size);
  const std::uint64_t row = columns * static_cast<std::uint64_t>(size_of(spec.dtype));
  const std::uint64_t own = row * static_cast<std::uint64_t>(own_rows);
  const bool any = own_rows > 0;
  const bool norm = traits.norm != device::Norm::kNone;
  const bool quantises = traits.quantizer != device::Quantizer::kNone;
  const bool fp4 = traits.quantizer == device::Quantizer::kFp4;
  const bool one_scale = traits.quantizer == device::Quantizer::kFp8Tensor;
  const std::uint64_t gamma = columns * static_cast<std::uint64_t>(size_of(spec.gamma_dtype));
  const bool norm_out = traits.norm_out || (runtime::has_optional_norm_out(spec) && tensors.norm_out != nullptr);
  return {{
      {"in", tensors.in, true, false, row * static_cast<std::uint64_t>(all_rows)},
      {"add_in", tensors.add_in, traits.add, false, own},
      {"residual_in", tensors.residual_in, traits.residual, false, own},
      // Weights and factors are loaded whether there are rows or not.
      {"gamma", tensors.gamma, norm, false, gamma},
      {"gamma_before", tensors.gamma_before, traits.norm == device::Norm::kPreAndPost && any, false, gamma},
      {"scale_factor", tensors.scale_factor, fp4 || one_scale, false, sizeof(float)},
      {"out", tensors.out, !norm, true, own},
      {"residual_out", tensors.residual_out, traits.residual, true, own},
      {"norm_out", tensors.norm_out, norm_out, true, own},
      {"quant_out", tensors.quant_out, quantises, true, columns * static_cast<std::uint64_t>(own_rows) / (fp4 ? 2 : 1)},
      {"scale_out", tensors.scale_out, quantises && !one_scale, true,
       runtime::scale_bytes(spec, own_rows, tensors.scale_stride)},
  }};
}

}  // namespace

std::uint64_t scale_bytes(const ReduceScatterKind& kind, std::int64_t own_rows, std::int64_t scale_stride) noexcept {
  return runtime::scale_bytes(shape_of(kind), own_rows, scale_stride);
}

ReduceScatter::ReduceScatter(const KernelSet& kernels, Workspace& workspace, const ReduceScatterKind& kind)
    : FusedOperation(kernels, workspace, shape_of(kind)) {}

Status ReduceScatter::launch(const ReduceScatterTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                             Stream stream) noexcept {
  if (const Status status = check_call(tokens, options); tokens != 0 && !status.ok()) return status;
  return launch_runs(tensors, runtime::balanced_partition(tokens, workspace_->world_size()), options, stream);
}

Status ReduceScatter::launch(const ReduceScatterTensors& tensors, std::span<const std::int64_t> rows_of_ranks,
                             const LaunchOptions& options, Stream stream) noexcept {
  std::int64_t rows = 0;
  if (const Status status = runtime::check_rows(rows_of_ranks, workspace_->world_size(), rows); !status.ok()) {
    return status;
  }
  if (const Status status = check_call(rows, options); rows != 0 && !status.ok()) return status;
  return launch_runs(tensors, runtime::explicit_partition(rows_of_ranks), options, stream);
}

Status ReduceScatter::launch_runs(const ReduceScatterTensors& tensors, const RowPartition& partition,
                                  const LaunchOptions& options, Stream stream) noexcept {
  const int rank = workspace_->rank();
  const std::int64_t all_rows = partition.rows(workspace_->world_size());
  const std::int64_t own_rows = partition.count(rank);
  if (all_rows == 0) return announce(specs_.front(), 0, 0, options, stream);
  const std::int64_t stride =
      tensors.scale_stride != 0 ? tensors.scale_stride : runtime::default_scale_stride(own_rows);
  if (const Status status = runtime::check_scale_stride(stride, own_rows); !status.ok()) return status;
  const Plan chosen = plan(partition.planned, options);
  const KernelSpec& spec = specs_[static_cast<std::size_t>(chosen.kernel)];
  if (required_rotation_bytes(spec, partition.planned) > workspace_->rotation_bytes()) {
    return {Code::kCapacity, "tokens", "need more bytes than the workspace was made for"};
  }
  if (const Status status = runtime::check_arguments(arguments_of(spec, tensors, all_rows, own_rows)); !status.ok()) {
    return status;
  }

  device::ReduceScatterParams params{};
  workspace_->fill(params.common);
  runtime::fill_epilogue(params.common, tensors, options);
  params.common.add_in = static_cast<const device::Vec16*>(tensors.add_in);
  params.common.scale_stride = static_cast<device::u64>(stride);
  params.common.tokens = static_cast<device::u32>(own_rows);
  params.common.operation = runtime::operation_word(Op::kReduceScatter, spec.pattern);
  std::copy(partition.begin.begin(), partition.begin.end(), params.row_begin);
  params.longest = static_cast<device::u32>(partition.longest);
  const std::uint32_t runs = is_announced() ? runtime::fingerprint(partition, workspace_->world_size()) : 0;
  if (const Status status = announce(spec, all_rows, runs, options, stream); !status.ok()) return status;
  return start(chosen, &params, options, stream);
}

}  // namespace commfuse
