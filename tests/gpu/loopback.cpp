#include "gpu/loopback.hpp"

#include <algorithm>

#include "commfuse/error.hpp"
#include "runtime/driver.hpp"

namespace commfuse::gpu {

using reference::TensorId;

DeviceContext::DeviceContext(int ordinal) {
  COMMFUSE_DRIVER(cuDeviceGet(&device_, ordinal));
  CUcontext context = nullptr;
  COMMFUSE_DRIVER(cuDevicePrimaryCtxRetain(&context, device_));
  COMMFUSE_DRIVER(cuCtxSetCurrent(context));
}

DeviceContext::~DeviceContext() {
  COMMFUSE_DRIVER_NOEXCEPT(cuCtxSetCurrent(nullptr));
  COMMFUSE_DRIVER_NOEXCEPT(cuDevicePrimaryCtxRelease(device_));
}

std::string why_no_gpu() {
  try {
    (void)runtime::driver();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

StreamHandle::StreamHandle() { COMMFUSE_DRIVER(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING)); }
StreamHandle::~StreamHandle() {
  if (stream_ != nullptr) COMMFUSE_DRIVER_NOEXCEPT(cuStreamDestroy(stream_));
}

AllReduceKind kind_of(const KernelSpec& spec) {
  AllReduceKind kind;
  kind.pattern = spec.pattern;
  kind.dtype = spec.dtype;
  kind.hidden_size = spec.hidden_size;
  kind.fp32_accumulate = spec.fp32_accumulate;
  kind.gamma_dtype = spec.gamma_dtype;
  kind.weight_bias = spec.weight_bias;
  kind.residual_scattered = spec.residual_scattered;
  kind.quant_layout = spec.quant_layout;
  kind.group_size = spec.group_size;
  kind.latent_width = spec.latent_width;
  return kind;
}

ReduceScatterKind reduce_scatter_kind_of(const KernelSpec& spec) {
  ReduceScatterKind kind;
  kind.pattern = spec.pattern;
  kind.dtype = spec.dtype;
  kind.hidden_size = spec.hidden_size;
  kind.fp32_accumulate = spec.fp32_accumulate;
  kind.gamma_dtype = spec.gamma_dtype;
  kind.weight_bias = spec.weight_bias;
  kind.quant_layout = spec.quant_layout;
  kind.group_size = spec.group_size;
  return kind;
}

AllGatherKind all_gather_kind_of(const KernelSpec& spec) {
  AllGatherKind kind;
  kind.pattern = spec.pattern;
  kind.dtype = spec.dtype;
  kind.hidden_size = spec.hidden_size;
  kind.gamma_dtype = spec.gamma_dtype;
  kind.weight_bias = spec.weight_bias;
  kind.q_lora_rank = spec.q_lora_rank;
  kind.kv_lora_rank = spec.kv_lora_rank;
  return kind;
}

LaunchOptions options_of(const reference::Case& data, bool zero_padding) {
  LaunchOptions options;
  options.eps = data.eps;
  options.algorithm = data.spec.algorithm;
  options.zero_scale_padding = zero_padding;
  return options;
}

PlacedCase::PlacedCase(reference::Case data, std::optional<int> only_rank)
    : data_(std::move(data)), only_rank_(only_rank), memory_(data_.ranks.size()) {
  for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
    if (!is_placed(rank)) continue;
    for (std::size_t i = 0; i < memory_[rank].size(); ++i) {
      const reference::CaseTensor& tensor = data_.ranks[rank][i];
      // A rank without rows still has a pointer to pass.
      if (tensor.used) memory_[rank][i] = runtime::DeviceBuffer(std::max<std::size_t>(tensor.bytes.size(), 16));
    }
  }
  restore();
}

void PlacedCase::register_with(LoopbackGroup& group, device::u32 tensors) {
  constexpr std::array kIds = {TensorId::kIn,      TensorId::kOut,      TensorId::kResidualOut,
                               TensorId::kNormOut, TensorId::kQuantOut, TensorId::kScaleOut};
  static_assert(kIds.size() == device::kDirectTensors);
  for (std::size_t i = 0; i < kIds.size(); ++i) {
    if ((tensors >> i & 1) == 0) continue;
    std::vector<void*> pointers;
    std::uint64_t bytes = UINT64_MAX;
    for (const auto& memory : memory_) {
      const runtime::DeviceBuffer& buffer = memory[static_cast<std::size_t>(kIds[i])];
      pointers.push_back(buffer.as());
      bytes = std::min<std::uint64_t>(bytes, buffer.bytes());
    }
    if (bytes != 0) registered_.push_back(group.register_buffers(pointers, bytes));
  }
}

void PlacedCase::unregister(LoopbackGroup& group) {
  for (const RegisteredBuffer& buffer : registered_) group.release(buffer);
  registered_.clear();
}

void PlacedCase::restore() {
  for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
    if (!is_placed(rank)) continue;
    for (std::size_t i = 0; i < memory_[rank].size(); ++i) {
      const reference::CaseTensor& tensor = data_.ranks[rank][i];
      if (!tensor.used) continue;
      if (is_output(static_cast<TensorId>(i))) {
        const reference::Bytes poison(tensor.bytes.size(), reference::kPoison);
        memory_[rank][i].upload(poison.data(), poison.size());
      } else {
        memory_[rank][i].upload(tensor.bytes.data(), tensor.bytes.size());
      }
    }
  }
}

AllReduceTensors PlacedCase::tensors(int rank) const {
  const auto& memory = memory_[static_cast<std::size_t>(rank)];
  const auto at = [&](TensorId id) { return memory[static_cast<std::size_t>(id)].as<void>(); };
  const auto floats = [&](TensorId id) { return static_cast<const float*>(at(id)); };
  AllReduceTensors tensors;
  tensors.in = at(TensorId::kIn);
  tensors.residual_in = at(TensorId::kResidualIn);
  tensors.gamma = at(TensorId::kGamma);
  tensors.gamma_before = at(TensorId::kGammaBefore);
  tensors.scale_factor = floats(TensorId::kScaleFactor);
  tensors.mixture_max = floats(TensorId::kMixtureMax);
  tensors.mixture_sum = floats(TensorId::kMixtureSum);
  tensors.mixture = floats(TensorId::kMixture);
  tensors.score_weight = at(TensorId::kScoreWeight);
  tensors.mixture_gamma = at(TensorId::kMixtureGamma);
  tensors.out = at(TensorId::kOut);
  tensors.residual_out = at(TensorId::kResidualOut);
  tensors.norm_out = at(TensorId::kNormOut);
  tensors.partial_norm_out = at(TensorId::kPartialNormOut);
  tensors.quant_out = at(TensorId::kQuantOut);
  tensors.scale_out = at(TensorId::kScaleOut);
  tensors.scale_stride = data_.scale_strides[static_cast<std::size_t>(rank)];
  return tensors;
}

ReduceScatterTensors PlacedCase::reduce_scatter_tensors(int rank) const {
  const auto& memory = memory_[static_cast<std::size_t>(rank)];
  const auto at = [&](TensorId id) { return memory[static_cast<std::size_t>(id)].as<void>(); };
  ReduceScatterTensors tensors;
  tensors.in = at(TensorId::kIn);
  tensors.add_in = at(TensorId::kAddIn);
  tensors.residual_in = at(TensorId::kResidualIn);
  tensors.gamma = at(TensorId::kGamma);
  tensors.gamma_before = at(TensorId::kGammaBefore);
  tensors.scale_factor = static_cast<const float*>(at(TensorId::kScaleFactor));
  tensors.out = at(TensorId::kOut);
  tensors.residual_out = at(TensorId::kResidualOut);
  tensors.norm_out = at(TensorId::kNormOut);
  tensors.quant_out = at(TensorId::kQuantOut);
  tensors.scale_out = at(TensorId::kScaleOut);
  tensors.scale_stride = data_.scale_strides[static_cast<std::size_t>(rank)];
  return tensors;
}

AllGatherTensors PlacedCase::all_gather_tensors(int rank) const {
  const auto& memory = memory_[static_cast<std::size_t>(rank)];
  const auto at = [&](TensorId id) { return memory[static_cast<std::size_t>(id)].as<void>(); };
  AllGatherTensors tensors;
  tensors.in = at(TensorId::kIn);
  tensors.x_gamma = at(TensorId::kGamma);
  tensors.y_gamma = at(TensorId::kYGamma);
  tensors.out = at(TensorId::kOut);
  tensors.x_norm_out = at(TensorId::kNormOut);
  tensors.y_norm_out = at(TensorId::kYNormOut);
  if (data_.y_in_out) {
    tensors.y_norm_out = static_cast<char*>(tensors.out) + data_.spec.q_lora_rank * size_of(data_.spec.dtype);
  }
  tensors.y_norm_stride = data_.y_norm_stride;
  tensors.quant_out = at(TensorId::kQuantOut);
  tensors.scale_out = at(TensorId::kScaleOut);
  tensors.scale_stride = data_.scale_strides[static_cast<std::size_t>(rank)];
  tensors.y_eps = data_.y_eps;
  return tensors;
}

std::string PlacedCase::check() const {
  for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
    if (!is_placed(rank)) continue;
    for (std::size_t i = 0; i < memory_[rank].size(); ++i) {
      const reference::CaseTensor& tensor = data_.ranks[rank][i];
      const auto id = static_cast<TensorId>(i);
      if (!tensor.used || !is_output(id)) continue;
      reference::Bytes actual(tensor.bytes.size());
      memory_[rank][i].download(actual.data(), actual.size());
      const std::string report = check_output(data_, static_cast<int>(rank), id, actual);
      if (!report.empty()) return report;
    }
  }
  return {};
}

Ranks::Ranks(int world_size, std::uint64_t rotation_bytes, std::chrono::nanoseconds timeout)
    : Ranks(world_size, {.rotation_bytes = rotation_bytes, .timeout = timeout}) {}

Ranks::Ranks(int world_size, const WorkspaceOptions& options) : group_(world_size, options) {
  for (int rank = 0; rank < world_size; ++rank) streams_.emplace_back();
}

std::string Ranks::synchronise() {
  for (const StreamHandle& stream : streams_) COMMFUSE_DRIVER(cuStreamSynchronize(stream.get()));
  for (int rank = 0; rank < size(); ++rank) {
    if (const Failure failure = workspace(rank).failure(); failure.code != Code::kOk) return failure.text();
  }
  return {};
}

GroupOperation::GroupOperation(const KernelSet& kernels, Ranks& ranks, const AllReduceKind& kind) : ranks_(ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    operations_.emplace_back(std::in_place_type<AllReduce>, kernels, ranks.workspace(rank), kind);
  }
}

GroupOperation::GroupOperation(const KernelSet& kernels, Ranks& ranks, const KernelSpec& spec) : ranks_(ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    switch (spec.op) {
      case Op::kAllReduce:
        operations_.emplace_back(std::in_place_type<AllReduce>, kernels, ranks.workspace(rank), kind_of(spec));
        break;
      case Op::kReduceScatter:
        operations_.emplace_back(std::in_place_type<ReduceScatter>, kernels, ranks.workspace(rank),
                                 reduce_scatter_kind_of(spec));
        break;
      case Op::kAllGather:
        operations_.emplace_back(std::in_place_type<AllGather>, kernels, ranks.workspace(rank),
                                 all_gather_kind_of(spec));
        break;
      case Op::kCallCheck:
        throw Error(Code::kInvalidArgument, "cannot call " + spec.name(), "it is part of other calls");
    }
  }
}

GroupOperation::Launch GroupOperation::prepare(int rank, const PlacedCase& placed) {
  auto& operation = operations_[static_cast<std::size_t>(rank)];
  if (auto* all_reduce = std::get_if<AllReduce>(&operation)) {
    return [all_reduce, tensors = placed.tensors(rank), tokens = placed.data().tokens](const LaunchOptions& options,
                                                                                       CUstream stream) {
      return all_reduce->launch(tensors, tokens, options, stream);
    };
  }
  std::vector<std::int64_t> rows;
  for (const reference::Rows& run : placed.data().rows) rows.push_back(run.count);
  if (auto* gather = std::get_if<AllGather>(&operation)) {
    return
        [gather, tensors = placed.all_gather_tensors(rank), rows = std::move(rows)](
            const LaunchOptions& options, CUstream stream) { return gather->launch(tensors, rows, options, stream); };
  }
  return [scatter = &std::get<ReduceScatter>(operation), tensors = placed.reduce_scatter_tensors(rank),
          rows = std::move(rows)](const LaunchOptions& options, CUstream stream) {
    return scatter->launch(tensors, rows, options, stream);
  };
}

std::string GroupOperation::launch(const PlacedCase& placed, const LaunchOptions& options) {
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const Status status = prepare(rank, placed)(options, ranks_.stream(rank));
    if (!status.ok()) return "rank " + std::to_string(rank) + ": " + status.text();
  }
  return {};
}

const FusedOperation& GroupOperation::any(int rank) const {
  return std::visit([](const auto& operation) -> const FusedOperation& { return operation; },
                    operations_[static_cast<std::size_t>(rank)]);
}

}  // namespace commfuse::gpu
