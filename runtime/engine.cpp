#include "commfuse/engine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/build.hpp"
#include "runtime/driver.hpp"
#include "runtime/loader.hpp"
#include "runtime/log.hpp"

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

std::vector<KernelSpec> without_repetition(const std::vector<KernelSpec>& specs) {
  std::vector<KernelSpec> unique;
  for (const KernelSpec& spec : specs) {
    if (std::find(unique.begin(), unique.end(), spec) == unique.end()) unique.push_back(spec);
  }
  return unique;
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

struct KernelSet::State {
  std::string arch;
  BuildReport report;
  std::vector<KernelImage> images;
};

KernelSet KernelSet::warm_up(const Deployment& deployment, const BuildOptions& options) {
  return warm_up(deployment.kernels({current_arch()}), options);
}

KernelSet KernelSet::warm_up(const std::vector<KernelSpec>& specs, const BuildOptions& options) {
  CUcontext context = nullptr;
  COMMFUSE_DRIVER(cuCtxGetCurrent(&context));
  if (context == nullptr) {
    throw Error(Code::kInvalidArgument, "cannot warm up", "no CUDA context is current on this thread",
                "Make one current first (cuCtxSetCurrent, or any call of the CUDA runtime)");
  }
  auto state = std::make_unique<State>();
  state->arch = current_arch();
  const std::vector<std::string>& archs = options.archs;
  if (!archs.empty() && std::find(archs.begin(), archs.end(), state->arch) == archs.end()) {
    throw Error(Code::kInvalidArgument, "cannot warm up",
                fmt::format("the device is {}, the options name {}", state->arch, fmt::join(archs, ", ")));
  }
  const std::vector<KernelSpec> unique = without_repetition(specs);
  for (const KernelSpec& spec : unique) {
    if (spec.arch == state->arch) continue;
    throw Error(Code::kInvalidArgument, fmt::format("cannot warm up kernel '{}'", spec.name()),
                fmt::format("it is for '{}', the device is {}", spec.arch, state->arch));
  }

  runtime::BuildResult built = runtime::build_kernels(unique, options, /*keep_cubins=*/true);
  for (const runtime::BuiltKernel& kernel : built.kernels) {
    if (kernel.failed != nullptr) std::rethrow_exception(kernel.failed);
  }
  state->report = std::move(built.report);
  for (std::size_t i = 0; i < unique.size(); ++i) {
    state->images.push_back(runtime::load_kernel(unique[i], state->report.kernels[i].key, built.kernels[i].cubin));
  }
  log(LogLevel::kInfo, fmt::format("{} kernels are loaded ({} compiled, {} from the cache)", unique.size(),
                                   state->report.compiled, state->report.hits));
  return KernelSet(std::move(state));
}

KernelSet::KernelSet(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
KernelSet::KernelSet(KernelSet&&) noexcept = default;
KernelSet& KernelSet::operator=(KernelSet&&) noexcept = default;
KernelSet::~KernelSet() = default;

const BuildReport& KernelSet::report() const noexcept { return state_->report; }
const std::string& KernelSet::arch() const noexcept { return state_->arch; }

const KernelImage* KernelSet::find(const KernelSpec& spec) const noexcept {
  // A few hundred kernels need no index, and an index by text would allocate.
  for (const KernelImage& image : state_->images) {
    if (image.spec == spec) return &image;
  }
  return nullptr;
}

}  // namespace commfuse
