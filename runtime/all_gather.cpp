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

constexpr std::int64_t kVectorBytes = 16;

KernelSpec shape_of(const AllGatherKind& kind) noexcept {
  KernelSpec shape;
  shape.op = Op::kAllGather;
  shape.pattern = kind.pattern;
  shape.dtype = kind.dtype;
  shape.hidden_size = kind.hidden_size;
  shape.gamma_dtype = kind.gamma_dtype.value_or(kind.dtype);
  shape.weight_bias = kind.weight_bias;
  shape.q_lora_rank = kind.q_lora_rank;
  shape.kv_lora_rank = kind.kv_lora_rank;
  return shape;
}

/// Rows and sizes of a call.
struct Extent {
  std::int64_t all_rows = 0;
  std::int64_t own_begin = 0;
  std::int64_t own_rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t y_stride = 0;      ///< elements
  std::int64_t scale_stride = 0;  ///< elements
};

constexpr std::size_t kArguments = 8;

/// The tensors of a call and their sizes. Places that may coincide are left out of what is compared.
std::array<Argument, kArguments> arguments_of(const KernelSpec& spec, const AllGatherTensors& tensors,
                                              const Extent& extent) noexcept {
  const runtime::PatternTraits traits = runtime::traits_of(spec.pattern);
  const auto bytes = [](std::int64_t rows, std::int64_t row) { return static_cast<std::uint64_t>(rows * row); };
  const std::int64_t element = size_of(spec.dtype);
  const std::int64_t weight = size_of(spec.gamma_dtype);
  const bool dual = traits.norm == device::Norm::kDual;
  const bool quantises = traits.quantizer != device::Quantizer::kNone;
  const auto* out = static_cast<const char*>(tensors.out);
  const bool in_place = out != nullptr && tensors.in == out + extent.own_begin * extent.row_bytes;
  const bool y_in_out =
      out != nullptr && tensors.y_norm_out == out + spec.q_lora_rank * element && extent.y_stride == spec.hidden_size;
  const std::int64_t y_bytes = (extent.all_rows - 1) * extent.y_stride * element + spec.kv_lora_rank * element;
  return {{
      {"in", tensors.in, !in_place, false, bytes(extent.own_rows, extent.row_bytes)},
      {"x_gamma", tensors.x_gamma, dual, false, bytes(spec.q_lora_rank, weight)},
      {"y_gamma", tensors.y_gamma, dual, false, bytes(spec.kv_lora_rank, weight)},
      {"out", tensors.out, true, true, bytes(extent.all_rows, extent.row_bytes)},
      {"x_norm_out", tensors.x_norm_out, dual, true, bytes(extent.all_rows, spec.q_lora_rank * element)},
      {"y_norm_out", tensors.y_norm_out, dual && !y_in_out, true, static_cast<std::uint64_t>(y_bytes)},
      {"quant_out", tensors.quant_out, quantises, true, bytes(extent.all_rows, spec.q_lora_rank)},
      {"scale_out", tensors.scale_out, quantises, true,
       runtime::scale_bytes(spec, extent.all_rows, extent.scale_stride)},
  }};
}

}  // namespace

std::uint64_t scale_bytes(const AllGatherKind& kind, std::int64_t tokens, std::int64_t scale_stride) noexcept {
  return runtime::scale_bytes(shape_of(kind), tokens, scale_stride);
}

AllGather::AllGather(const KernelSet& kernels, Workspace& workspace, const AllGatherKind& kind)
    : FusedOperation(kernels, workspace, shape_of(kind)) {}

Status AllGather::launch(const AllGatherTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                         Stream stream) noexcept {
  if (const Status status = check_call(tokens, options); tokens != 0 && !status.ok()) return status;
  return launch_runs(tensors, runtime::balanced_partition(tokens, workspace_->world_size()), options, stream);
}

Status AllGather::launch(const AllGatherTensors& tensors, std::span<const std::int64_t> rows_of_ranks,
                         const LaunchOptions& options, Stream stream) noexcept {
  std::int64_t rows = 0;
  if (const Status status = runtime::check_rows(rows_of_ranks, workspace_->world_size(), rows); !status.ok()) {
    return status;
  }
  if (const Status status = check_call(rows, options); rows != 0 && !status.ok()) return status;
  return launch_runs(tensors, runtime::explicit_partition(rows_of_ranks), options, stream);
}

Status AllGather::launch_runs(const AllGatherTensors& tensors, const RowPartition& partition,
                              const LaunchOptions& options, Stream stream) noexcept {
  const int rank = workspace_->rank();
  const KernelSpec& first = specs_.front();
  Extent extent;
  extent.all_rows = partition.rows(workspace_->world_size());
  if (extent.all_rows == 0) return announce(first, 0, 0, options, stream);
  extent.own_begin = partition.begin[static_cast<std::size_t>(rank)];
  extent.own_rows = partition.count(rank);
  extent.row_bytes = std::int64_t{first.hidden_size} * size_of(first.dtype);
  extent.y_stride = tensors.y_norm_stride != 0 ? tensors.y_norm_stride : first.kv_lora_rank;
  if (extent.y_stride < first.kv_lora_rank || extent.y_stride * size_of(first.dtype) % kVectorBytes != 0) {
    return {Code::kInvalidArgument, "y_norm_stride", "must be at least kv_lora_rank, and a multiple of 16 bytes"};
  }
  extent.scale_stride =
      tensors.scale_stride != 0 ? tensors.scale_stride : runtime::default_scale_stride(extent.all_rows);
  if (const Status status = runtime::check_scale_stride(extent.scale_stride, extent.all_rows); !status.ok()) {
    return status;
  }
  const Plan chosen = plan(partition.planned, options);
  const KernelSpec& spec = specs_[static_cast<std::size_t>(chosen.kernel)];
  if (required_rotation_bytes(spec, partition.planned) > workspace_->rotation_bytes()) {
    return {Code::kCapacity, "tokens", "need more bytes than the workspace was made for"};
  }
  if (const Status status = runtime::check_arguments(arguments_of(spec, tensors, extent)); !status.ok()) return status;

  device::AllGatherParams params{};
  device::AllReduceParams& common = params.common;
  workspace_->fill(common);
  common.in = static_cast<const device::Vec16*>(tensors.in);
  common.gamma = tensors.x_gamma;
  common.out = static_cast<device::Vec16*>(tensors.out);
  common.norm_out = static_cast<device::Vec16*>(tensors.x_norm_out);
  common.quant_out = tensors.quant_out;
  common.scale_out = tensors.scale_out;
  common.scale_stride = static_cast<device::u64>(extent.scale_stride);
  common.flags = runtime::call_flags(options);
  common.eps = options.eps;
  common.tokens = static_cast<device::u32>(extent.all_rows);
  common.operation = runtime::operation_word(Op::kAllGather, spec.pattern);
  params.y_gamma = tensors.y_gamma;
  params.y_norm_out = static_cast<device::Vec16*>(tensors.y_norm_out);
  params.y_norm_stride = static_cast<device::u64>(extent.y_stride * size_of(spec.dtype) / kVectorBytes);
  params.y_eps = tensors.y_eps;
  params.longest = static_cast<device::u32>(partition.longest);
  std::copy(partition.begin.begin(), partition.begin.end(), params.row_begin);
  const std::uint32_t runs = is_announced() ? runtime::fingerprint(partition, workspace_->world_size()) : 0;
  if (const Status status = announce(spec, extent.all_rows, runs, options, stream); !status.ok()) return status;
  return start(chosen, &params, options, stream);
}

}  // namespace commfuse
