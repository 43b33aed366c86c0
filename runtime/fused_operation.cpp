#include <cuda.h>
#include <fmt/format.h>

#include <array>
#include <string>

#include "commfuse/operations.hpp"
#include "runtime/call_arguments.hpp"
#include "runtime/call_check.hpp"
#include "runtime/driver.hpp"
#include "runtime/loader.hpp"
#include "runtime/pattern.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {

FusedOperation::FusedOperation(const KernelSet& kernels, Workspace& workspace, KernelSpec shape)
    : workspace_(dynamic_cast<runtime::WorkspaceState*>(&workspace)) {
  if (workspace_ == nullptr) {
    throw Error(Code::kInvalidArgument, fmt::format("cannot prepare {}", to_string(shape.op)),
                "the workspace is not one that commfuse made", "make it with LoopbackGroup or ProcessGroup");
  }
  shape.world_size = workspace.world_size();
  shape.arch = kernels.arch();
  shape = shape.normalised();
  std::vector<KernelSpec> alternatives;
  for (const Algorithm algorithm : runtime::algorithms_of(shape.op)) {
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
    specs_.push_back(alternatives[i]);
    images_.push_back(found[i]);
  }
  measured_ = workspace_->planner_table().find(shape);
  check_ = runtime::call_check_of(kernels, *workspace_);
}

Status FusedOperation::announce(const KernelSpec& spec, std::int64_t tokens, std::uint32_t rows_of_ranks,
                                const LaunchOptions& options, Stream stream) const noexcept {
  if (check_ == nullptr) return {};
  return runtime::announce_call(*check_, *workspace_, runtime::CallHeader(spec, tokens, rows_of_ranks, options.eps),
                                stream);
}

Plan FusedOperation::plan(std::int64_t tokens, const LaunchOptions& options, bool registered) const noexcept {
  PlanRequest request;
  request.kernels = specs_;
  request.tokens = tokens;
  request.algorithm = options.algorithm;
  request.max_blocks = options.max_blocks;
  request.dependent_launch = options.dependent_launch || options.trigger_early;
  request.registered = registered;
  request.measured = measured_;
  return commfuse::plan(request, workspace_->caps());
}

Status FusedOperation::check_call(std::int64_t tokens, const LaunchOptions& options) const noexcept {
  if (tokens < 0 || tokens >= runtime::kMaxTokens) return {Code::kInvalidArgument, "tokens", "must be 0 to 2^31 - 1"};
  if (options.max_blocks < 0) return {Code::kInvalidArgument, "max_blocks", "is negative"};
  if (const Code code = workspace_->failure_code(); code != Code::kOk) {
    return {code, "workspace", "has failed in an earlier call; see Workspace::failure()"};
  }
  return {};
}

Status FusedOperation::start(const Plan& chosen, void* params, const LaunchOptions& options,
                             Stream stream) const noexcept {
  const KernelSpec& spec = specs_[static_cast<std::size_t>(chosen.kernel)];
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
  void* arguments[] = {params};
  const runtime::Driver* driver = runtime::driver_if_open();
  if (driver == nullptr) return {Code::kDriver, "driver", "was never opened"};
  const CUresult result =
      driver->cuLaunchKernelEx(&config, images_[static_cast<std::size_t>(chosen.kernel)]->function, arguments, nullptr);
  if (result != CUDA_SUCCESS) return {Code::kDriver, "cuLaunchKernelEx", "refused the launch"};
  return {};
}

}  // namespace commfuse
