#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "commfuse/operations.hpp"
#include "device/params.cuh"
#include "runtime/driver.hpp"
#include "runtime/loader.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
constexpr std::uintptr_t kAlignment = 16;

/// One tensor of a call, for the checks.
struct Argument {
  std::string_view name;
  const void* pointer = nullptr;
  bool required = false;
  bool output = false;
  std::uint64_t bytes = 0;
};

bool overlap_partly(const Argument& a, const Argument& b) noexcept {
  const auto a0 = reinterpret_cast<std::uintptr_t>(a.pointer);
  const auto b0 = reinterpret_cast<std::uintptr_t>(b.pointer);
  return a0 < b0 + b.bytes && b0 < a0 + a.bytes && !(a0 == b0 && a.bytes == b.bytes);
}

template <std::size_t kCount>
Status check(const std::array<Argument, kCount>& arguments) noexcept {
  for (const Argument& argument : arguments) {
    if (argument.required && argument.pointer == nullptr) {
      return {Code::kInvalidArgument, argument.name, "is missing"};
    }
    if (reinterpret_cast<std::uintptr_t>(argument.pointer) % kAlignment != 0) {
      return {Code::kInvalidArgument, argument.name, "is not 16-byte aligned"};
    }
  }
  for (const Argument& output : arguments) {
    if (!output.required || !output.output) continue;
    for (const Argument& other : arguments) {
      if (&other == &output || !other.required) continue;
      // Two outputs in one place, or an output that is shifted against an input: somebody's data is lost.
      if (other.output ? other.pointer == output.pointer : false) {
        return {Code::kInvalidArgument, output.name, "is the same memory as another output"};
      }
      if (overlap_partly(output, other)) {
        return {Code::kInvalidArgument, output.name, "overlaps another tensor (it may only be the very same matrix)"};
      }
    }
  }
  return {};
}

}  // namespace

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
  shape.fp32_accumulate = kind.fp32_accumulate || kind.dtype == DataType::kFp32;
  shape.world_size = workspace.world_size();
  shape.arch = kernels.arch();
  for (const Geometry& geometry : geometries(shape)) {
    shape.threads = geometry.threads;
    shape.cluster = geometry.cluster;
    shape.validate();
    const KernelImage* image = kernels.find(shape);
    if (image == nullptr) {
      throw Error(Code::kNotWarmed, fmt::format("cannot prepare all-reduce kernel '{}'", shape.name()),
                  "it is not in the kernel set", "add its pattern, type and hidden size to the deployment file");
    }
    specs_.push_back(shape);
    images_.push_back(image);
  }
}

Plan AllReduce::plan(std::int64_t tokens, const LaunchOptions& options) const noexcept {
  PlanRequest request;
  request.kernels = specs_;
  request.tokens = tokens;
  request.max_blocks = options.max_blocks;
  request.dependent_launch = options.dependent_launch || options.trigger_early;
  return commfuse::plan(request, workspace_->caps());
}

Status AllReduce::launch(const AllReduceTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                         Stream stream) noexcept {
  if (tokens == 0) return {};
  if (tokens < 0 || tokens >= kMaxTokens) return {Code::kInvalidArgument, "tokens", "must be 0 to 2^31 - 1"};
  if (options.max_blocks < 0) return {Code::kInvalidArgument, "max_blocks", "is negative"};
  if (const Code code = workspace_->failure_code(); code != Code::kOk) {
    return {code, "workspace", "has failed in an earlier call; see Workspace::failure()"};
  }
  const std::uint64_t row =
      static_cast<std::uint64_t>(kind_.hidden_size) * static_cast<std::uint64_t>(size_of(kind_.dtype));
  const std::uint64_t matrix = row * static_cast<std::uint64_t>(tokens);
  const bool norm = kind_.pattern != Pattern::kAllReduce;
  const std::array<Argument, 6> arguments = {{
      {"in", tensors.in, true, false, matrix},
      {"residual_in", tensors.residual_in, norm, false, matrix},
      {"gamma", tensors.gamma, norm, false, row},
      {"out", tensors.out, !norm, true, matrix},
      {"residual_out", tensors.residual_out, norm, true, matrix},
      {"norm_out", tensors.norm_out, norm, true, matrix},
  }};
  if (const Status status = check(arguments); !status.ok()) return status;
  if (required_rotation_bytes(specs_.front(), tokens) > workspace_->rotation_bytes()) {
    return {Code::kCapacity, "tokens", "need more bytes than the workspace was made for"};
  }

  const Plan chosen = plan(tokens, options);
  const KernelSpec& spec = specs_[static_cast<std::size_t>(chosen.kernel)];
  device::AllReduceParams params{};
  workspace_->fill(params);
  params.in = static_cast<const device::Vec16*>(tensors.in);
  params.residual_in = static_cast<const device::Vec16*>(tensors.residual_in);
  params.gamma = tensors.gamma;
  params.out = static_cast<device::Vec16*>(tensors.out);
  params.residual_out = static_cast<device::Vec16*>(tensors.residual_out);
  params.norm_out = static_cast<device::Vec16*>(tensors.norm_out);
  params.tokens = static_cast<device::u32>(tokens);
  params.flags = options.trigger_early ? device::kTriggerEarly : 0U;
  params.operation = static_cast<device::u32>(kind_.pattern);
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
