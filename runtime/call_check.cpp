#include "runtime/call_check.hpp"

#include <fmt/format.h>

#include <cstring>

#include "runtime/driver.hpp"
#include "runtime/loader.hpp"

namespace commfuse::runtime {

const KernelImage* call_check_of(const KernelSet& kernels, const WorkspaceState& workspace) {
  if (!workspace.is_checking()) return nullptr;
  const KernelSpec spec = KernelSpec::call_check(workspace.world_size(), kernels.arch());
  const KernelImage* image = kernels.find(spec);
  if (image != nullptr) return image;
  throw Error(Code::kNotWarmed, "cannot prepare an operation on a workspace in checking mode",
              fmt::format("the kernel '{}' is not in the kernel set", spec.name()),
              "Add \"checking\": true to the deployment file, or KernelSpec::call_check to the list of kernels");
}

Status announce_call(const KernelImage& check, const WorkspaceState& workspace, const CallHeader& header,
                     CUstream stream) noexcept {
  device::CallCheckParams params{};
  workspace.fill(params.call);
  params.call.operation = header.word[device::kOperationWord] | device::kAnnouncement;
  static_assert(sizeof(params.header) == sizeof(header.word));
  std::memcpy(params.header, header.word, sizeof(params.header));
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(check.spec.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  void* arguments[] = {&params};
  const Driver* driver = driver_if_open();
  if (driver == nullptr) return {Code::kDriver, "driver", "was never opened"};
  if (driver->cuLaunchKernelEx(&config, check.function, arguments, nullptr) != CUDA_SUCCESS) {
    return {Code::kDriver, "cuLaunchKernelEx", "refused to launch the announcement of the call"};
  }
  return {};
}

}  // namespace commfuse::runtime
