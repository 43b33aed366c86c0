#include "commfuse/engine.hpp"

#include <fmt/format.h>

#include "runtime/build.hpp"
#include "runtime/driver.hpp"

namespace commfuse {
namespace {

/// The device of the current context, else the first one.
CUdevice current_device() {
  CUcontext context = nullptr;
  COMMFUSE_DRIVER(cuCtxGetCurrent(&context));
  CUdevice device = 0;
  if (context != nullptr) {
    COMMFUSE_DRIVER(cuCtxGetDevice(&device));
    return device;
  }
  int count = 0;
  COMMFUSE_DRIVER(cuDeviceGetCount(&count));
  if (count == 0) throw Error(Code::kNotFound, "there is no CUDA device", "the driver counts none");
  COMMFUSE_DRIVER(cuDeviceGet(&device, 0));
  return device;
}

std::vector<std::string> archs_of(const Deployment& deployment, const BuildOptions& options) {
  if (!options.archs.empty()) return options.archs;
  if (!deployment.arch.empty()) return deployment.arch;
  try {
    return {current_arch()};
  } catch (const Error& error) {
    throw Error(Code::kNotFound, fmt::format("no architecture to compile deployment '{}' for", deployment.name),
                fmt::format("none is named, and there is no device to ask: {}: {}", error.message(), error.cause()),
                "Name architectures (--arch sm_90a,sm_100a), in the deployment's 'arch' or in the call");
  }
}

}  // namespace

BuildReport precompile(const Deployment& deployment, const BuildOptions& options) {
  const std::vector<KernelSpec> specs = deployment.kernels(archs_of(deployment, options));
  return runtime::build_kernels(specs, options, /*keep_cubins=*/false).report;
}

std::string current_arch() {
  const CUdevice device = current_device();
  int major = 0;
  int minor = 0;
  COMMFUSE_DRIVER(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  COMMFUSE_DRIVER(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  // From 9.0 on an architecture has features of its own, which only the 'a' target may use.
  return fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
}

}  // namespace commfuse
