#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "commfuse/operations.hpp"
#include "device/params.cuh"
#include "device/scale_layout.cuh"
#include "runtime/call_check.hpp"
#include "runtime/driver.hpp"
#include "runtime/loader.hpp"
#include "runtime/pattern.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
constexpr std::uintptr_t kAlignment = 16;

/// One tensor of a call, for the checks.
struct Argument {
  std::string_view name;
  const void* pointer = nullptr;
  bool used = false;
  bool output = false;
  std::uint64_t bytes = 0;
  device::Direct direct = device::Direct::kCount;  ///< which tensor of a direct kernel it is; kCount: none
};

bool overlap_partly(const Argument& a, const Argument& b) noexcept {
  const auto a0 = reinterpret_cast<std::uintptr_t>(a.pointer);
  const auto b0 = reinterpret_cast<std::uintptr_t>(b.pointer);
  return a0 < b0 + b.bytes && b0 < a0 + a.bytes && !(a0 == b0 && a.bytes == b.bytes);
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
  // A rank that owns no rows has nothing to pass.
  const bool has_residual = traits.residual && residual > 0;
  const std::uint64_t gamma = weight * (latent ? static_cast<std::uint64_t>(kind.latent_width) : columns);
  return {{
      {"in", tensors.in, true, false, row * rows, Direct::kIn},
      {"residual_in", tensors.residual_in, has_residual, false, residual},
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
      {"residual_out", tensors.residual_out, has_residual, true, residual,
       kind.residual_scattered ? Direct::kCount : Direct::kResidualOut},
      {"norm_out", tensors.norm_out, traits.norm_out, true, row * rows, Direct::kNormOut},
      {"partial_norm_out", tensors.partial_norm_out, traits.partial_out && own_rows > 0, true, row * own_rows},
      {"quant_out", tensors.quant_out, quantises, true, columns * rows / (fp4 ? 2 : 1), Direct::kQuantOut},
      {"scale_out", tensors.scale_out, quantises && !one_scale, true, scale_bytes(kind, tokens, tensors.scale_stride),
       Direct::kScaleOut},
  }};
}

Status check(const std::array<Argument, kArguments>& arguments) noexcept {
  for (const Argument& argument : arguments) {
    if (!argument.used) continue;
    if (argument.pointer == nullptr) return {Code::kInvalidArgument, argument.name, "is missing"};
    // Single numbers are read by themselves; everything else in whole vectors.
    const std::uintptr_t alignment = argument.bytes == sizeof(float) ? sizeof(float) : kAlignment;
    if (reinterpret_cast<std::uintptr_t>(argument.pointer) % alignment != 0) {
      return {Code::kInvalidArgument, argument.name, "is not aligned (tensors to 16 bytes, single numbers to 4)"};
    }
  }
  for (const Argument& output : arguments) {
    if (!output.used || !output.output) continue;
    for (const Argument& other : arguments) {
      if (&other == &output || !other.used) continue;
      // Two outputs in one place, or an output that is shifted against an input: somebody's data is lost.
      if (other.output && other.pointer == output.pointer) {
        return {Code::kInvalidArgument, output.name, "is the same memory as another output"};
      }
      if (overlap_partly(output, other)) {
        return {Code::kInvalidArgument, output.name, "overlaps another tensor (it may only be the very same matrix)"};
      }
    }
  }
  return {};
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
  const auto rows = static_cast<std::uint64_t>(tokens);
  const auto columns = static_cast<std::uint64_t>(kind.hidden_size);
  const std::uint64_t stride = scale_stride != 0 ? static_cast<std::uint64_t>(scale_stride) : (rows + 3) / 4 * 4;
  switch (runtime::traits_of(kind.pattern).quantizer) {
    case device::Quantizer::kNone:
    case device::Quantizer::kFp8Tensor:
      return 0;
    case device::Quantizer::kFp8Block:
      return 4 * device::column_major_elements(rows, columns / device::kFp8BlockColumns, stride);
    case device::Quantizer::kFp8Token:
      return 4 * rows;
    case device::Quantizer::kFp8Group: {
      const auto groups = columns / static_cast<std::uint64_t>(std::max(kind.group_size, 1));
      return 4 * device::column_major_elements(rows, (groups + 3) / 4, stride);
    }
    case device::Quantizer::kFp4:
      return device::fp4_scale_bytes(static_cast<device::ScaleLayout>(kind.quant_layout), rows,
                                     columns / device::kFp4BlockColumns);
  }
  return 0;
}

AllReduce::AllReduce(const KernelSet& kernels, Workspace& workspace, const AllReduceKind& kind)
    : kind_(kind), workspace_(dynamic_cast<runtime::WorkspaceState*>(&workspace)) {
  if (workspace_ == nullptr) {
    throw Error(Code::kInvalidArgument, "cannot prepare an all-reduce", "the workspace is not one that commfuse made",
                "make it with LoopbackGroup");
  }
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
  shape.world_size = workspace.world_size();
  shape.arch = kernels.arch();
  shape = shape.normalised();
  kind_.gamma_dtype = shape.gamma_dtype;
  kind_.residual_scattered = shape.residual_scattered;
  std::vector<KernelSpec> alternatives;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kDirect}) {
    shape.algorithm = algorithm;
    for (const Geometry& geometry : geometries(shape)) {
      shape.threads = geometry.threads;
      shape.cluster = geometry.cluster;
      shape.validate();
      alternatives.push_back(shape);
    }
  }
  // An algorithm that the deployment left out is one that this operation does not choose.
  const std::vector<const KernelImage*> found = kernels.find_or_build(alternatives);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == nullptr) continue;
    has_direct_ = has_direct_ || alternatives[i].algorithm == Algorithm::kDirect;
    specs_.push_back(alternatives[i]);
    images_.push_back(found[i]);
  }
  check_ = runtime::call_check_of(kernels, *workspace_);
}

Plan AllReduce::plan(std::int64_t tokens, const LaunchOptions& options, bool registered) const noexcept {
  PlanRequest request;
  request.kernels = specs_;
  request.tokens = tokens;
  request.algorithm = options.algorithm;
  request.max_blocks = options.max_blocks;
  request.dependent_launch = options.dependent_launch || options.trigger_early;
  request.registered = registered;
  request.measured = workspace_->planner_table().find(specs_.front());
  return commfuse::plan(request, workspace_->caps());
}

Status AllReduce::announce(const KernelSpec& spec, std::int64_t tokens, const LaunchOptions& options,
                           Stream stream) const noexcept {
  if (check_ == nullptr) return {};
  return runtime::announce_call(*check_, *workspace_, runtime::CallHeader(spec, tokens, options.eps), stream);
}

Status AllReduce::launch(const AllReduceTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                         Stream stream) noexcept {
  // In checking mode others may find out that they should have brought none either.
  if (tokens == 0 && check_ == nullptr) return {};
  if (tokens < 0 || tokens >= kMaxTokens) return {Code::kInvalidArgument, "tokens", "must be 0 to 2^31 - 1"};
  if (options.max_blocks < 0) return {Code::kInvalidArgument, "max_blocks", "is negative"};
  if (const Code code = workspace_->failure_code(); code != Code::kOk) {
    return {code, "workspace", "has failed in an earlier call; see Workspace::failure()"};
  }
  if (tokens == 0) return announce(*specs_.begin(), tokens, options, stream);
  const std::int64_t stride = tensors.scale_stride != 0 ? tensors.scale_stride : (tokens + 3) / 4 * 4;
  if (stride < tokens || stride % 4 != 0) {
    return {Code::kInvalidArgument, "scale_stride", "must be a multiple of 4 and at least the number of tokens"};
  }
  const std::array<Argument, kArguments> arguments = arguments_of(kind_, *workspace_, tensors, tokens);
  const RegisteredTensors registered = has_direct_ ? registered_of(arguments, *workspace_) : RegisteredTensors{};
  const Plan chosen = plan(tokens, options, registered.found != 0);
  const KernelSpec& spec = specs_[static_cast<std::size_t>(chosen.kernel)];
  // A direct call that finds everything registered stages nothing.
  const bool stages = spec.algorithm != Algorithm::kDirect || registered.found != registered.wanted;
  if (stages && required_rotation_bytes(spec, tokens) > workspace_->rotation_bytes()) {
    return {Code::kCapacity, "tokens", "need more bytes than the workspace was made for"};
  }
  if (const Status status = check(arguments); !status.ok()) return status;

  if (const Status status = announce(spec, tokens, options, stream); !status.ok()) return status;

  const auto vectors = [](const void* pointer) { return static_cast<const device::Vec16*>(pointer); };
  const auto outputs = [](void* pointer) { return static_cast<device::Vec16*>(pointer); };
  device::AllReduceParams params{};
  workspace_->fill(params);
  params.in = vectors(tensors.in);
  params.residual_in = vectors(tensors.residual_in);
  params.gamma = tensors.gamma;
  params.gamma_before = tensors.gamma_before;
  params.out = outputs(tensors.out);
  params.residual_out = outputs(tensors.residual_out);
  params.norm_out = outputs(tensors.norm_out);
  params.partial_norm_out = outputs(tensors.partial_norm_out);
  params.quant_out = tensors.quant_out;
  params.scale_out = tensors.scale_out;
  params.scale_factor = tensors.scale_factor;
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
  params.flags = (options.trigger_early ? device::kTriggerEarly : 0U) |
                 (options.zero_scale_padding ? device::kZeroScalePadding : 0U);
  params.operation = runtime::operation_code(spec.op, spec.pattern);
  params.eps = options.eps;

  std::array<CUlaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (options.dependent_launch) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (spec.cluster > 1) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[count++].value.clusterDim = {static_cast<unsigned>(spec.cluster), 1, 1};
  }
  CUlaunchConfig config{};
  config.gridDimX = chosen.blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(spec.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = attributes.data();
  config.numAttrs = count;
  void* arguments_of_kernel[] = {&params};
  const runtime::Driver* driver = runtime::driver_if_open();
  if (driver == nullptr) return {Code::kDriver, "driver", "was never opened"};
  const CUresult result = driver->cuLaunchKernelEx(&config, images_[static_cast<std::size_t>(chosen.kernel)]->function,
                                                   arguments_of_kernel, nullptr);
  if (result != CUDA_SUCCESS) return {Code::kDriver, "cuLaunchKernelEx", "refused the launch"};
  return {};
}

}  // namespace commfuse
