#include "runtime/loader.hpp"

#include <fmt/format.h>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "runtime/driver.hpp"
#include "runtime/elf.hpp"
#include "runtime/generator.hpp"

namespace commfuse::runtime {
namespace {

/// While it lives, this thread may load and allocate although some stream is being captured. Otherwise the driver would
/// refuse, and the capture would be lost.
class CaptureGuard {
 public:
  CaptureGuard() { COMMFUSE_DRIVER(cuThreadExchangeStreamCaptureMode(&mode_)); }
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;
  ~CaptureGuard() { COMMFUSE_DRIVER_NOEXCEPT(cuThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

[[noreturn]] void refuse(const std::string& name, std::string cause) {
  throw Error(Code::kMismatch, fmt::format("the kernel '{}' is not the one that this build of commfuse launches", name),
              std::move(cause), "Remove it from the cache, so that it is compiled again");
}

void check_parameters(const std::string& name, CUkernel kernel, std::string_view cubin, std::size_t expected) {
  const std::size_t in_tables = read_cubin(cubin, name).param_bytes;
  if (in_tables != expected) {
    refuse(name, fmt::format("it takes {} bytes of parameters, the host passes {}", in_tables, expected));
  }
  if (driver().cuKernelGetParamInfo == nullptr) return;  // before CUDA 12.4; the tables must do
  std::size_t offset = 0;
  std::size_t size = 0;
  COMMFUSE_DRIVER(cuKernelGetParamInfo(kernel, 0, &offset, &size));
  if (offset != 0 || size != expected) {
    refuse(name, fmt::format("its first parameter is {} bytes at offset {}, the host passes {} bytes", size, offset,
                             expected));
  }
}

int attribute_of(CUfunction function, CUfunction_attribute attribute) {
  int value = 0;
  COMMFUSE_DRIVER(cuFuncGetAttribute(&value, attribute, function));
  return value;
}

void check_occupancy(const std::string& name, const KernelImage& image) {
  const KernelSpec& spec = image.spec;
  const int promised = resident_blocks_per_sm(spec.threads);
  if (image.blocks_per_sm < promised) {
    refuse(name,
           fmt::format("{} of its blocks fit on one SM ({} registers a thread, {} bytes of shared memory a block), "
                       "the planner counts on {}",
                       image.blocks_per_sm, image.registers, image.shared_bytes, promised));
  }
  if (spec.cluster == 1) return;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {static_cast<unsigned>(spec.cluster), 1, 1};
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(spec.cluster);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(spec.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  COMMFUSE_DRIVER(cuOccupancyMaxActiveClusters(&clusters, image.function, &config));
  if (clusters < 1) refuse(name, fmt::format("no cluster of {} blocks fits on this device", spec.cluster));
}

}  // namespace

Library::Library(std::string_view cubin, const std::string& name) {
  // No option asks for lazy loading, but CUDA_MODULE_LOADING may: cuFuncLoad settles it.
  const CUresult result = driver().cuLibraryLoadData(&handle_, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result == CUDA_SUCCESS) return;
  if (result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU) {
    throw Error(Code::kUnsupported, fmt::format("the CUDA driver cannot load the kernel '{}'", name),
                describe_driver_error(result),
                fmt::format("Its compiler may be newer than the driver, which is for CUDA {}.{}: update the driver, or "
                            "set COMMFUSE_NVRTC to an older libnvrtc.so",
                            driver().version() / 1000, driver().version() % 1000 / 10));
  }
  throw_driver_error(result, fmt::format("cuLibraryLoadData of '{}'", name).c_str());
}

Library::~Library() {
  if (handle_ != nullptr) COMMFUSE_DRIVER_NOEXCEPT(cuLibraryUnload(handle_));
}

KernelImage load_kernel(const KernelSpec& spec, std::string key, std::string_view cubin) {
  const std::string name = spec.name();
  const CaptureGuard guard;
  KernelImage image{.spec = spec, .key = std::move(key), .library = Library(cubin, name)};
  CUkernel kernel = nullptr;
  COMMFUSE_DRIVER(cuLibraryGetKernel(&kernel, image.library.get(), name.c_str()));
  check_parameters(name, kernel, cubin, template_of(spec).params_size);
  COMMFUSE_DRIVER(cuKernelGetFunction(&image.function, kernel));
  // Older drivers load for the attributes and the occupancy below.
  if (driver().cuFuncLoad != nullptr) COMMFUSE_DRIVER(cuFuncLoad(image.function));
  // No attribute needs setting: shared memory is static, and clusters of up to 8 blocks are portable.
  image.registers = attribute_of(image.function, CU_FUNC_ATTRIBUTE_NUM_REGS);
  image.shared_bytes = attribute_of(image.function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  image.local_bytes = attribute_of(image.function, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  COMMFUSE_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor(&image.blocks_per_sm, image.function, spec.threads, 0));
  check_occupancy(name, image);
  return image;
}

}  // namespace commfuse::runtime
