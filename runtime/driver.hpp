// The CUDA driver, opened at run time.
#pragma once

#include <cuda.h>

#include <string>

#include "runtime/dynamic_library.hpp"
#include "runtime/env.hpp"

namespace commfuse::runtime {

// Calls to the driver that commfuse makes: name, the CUDA version whose form of the call is meant (the driver keeps old
// forms), and whether commfuse can do without. cuda.h turns some names into others (cuMemAlloc into cuMemAlloc_v2),
// here and wherever a member is used alike.
#define COMMFUSE_DRIVER_FUNCTIONS(X)                              \
  X(cuInit, 2000, kRequired)                                      \
  X(cuDriverGetVersion, 2020, kRequired)                          \
  X(cuGetErrorName, 6000, kRequired)                              \
  X(cuGetErrorString, 6000, kRequired)                            \
  X(cuDeviceGet, 2000, kRequired)                                 \
  X(cuDeviceGetCount, 2000, kRequired)                            \
  X(cuDeviceGetAttribute, 2000, kRequired)                        \
  X(cuDeviceGetName, 2000, kRequired)                             \
  X(cuDeviceGetUuid, 11040, kRequired)                            \
  X(cuDeviceGetPCIBusId, 4010, kRequired)                         \
  X(cuDeviceCanAccessPeer, 4000, kRequired)                       \
  X(cuDeviceGetP2PAttribute, 8000, kRequired)                     \
  X(cuDevicePrimaryCtxRetain, 7000, kRequired)                    \
  X(cuDevicePrimaryCtxRelease, 11000, kRequired)                  \
  X(cuCtxPushCurrent, 4000, kRequired)                            \
  X(cuCtxPopCurrent, 4000, kRequired)                             \
  X(cuCtxGetCurrent, 4000, kRequired)                             \
  X(cuCtxSetCurrent, 4000, kRequired)                             \
  X(cuCtxGetDevice, 2000, kRequired)                              \
  X(cuCtxGetId, 12000, kRequired)                                 \
  X(cuCtxSynchronize, 2000, kRequired)                            \
  X(cuCtxEnablePeerAccess, 4000, kRequired)                       \
  X(cuMemGetInfo, 3020, kRequired)                                \
  X(cuMemAlloc, 3020, kRequired)                                  \
  X(cuMemFree, 3020, kRequired)                                   \
  X(cuMemGetAddressRange, 3020, kRequired)                        \
  X(cuMemcpyHtoD, 3020, kRequired)                                \
  X(cuMemcpyDtoH, 3020, kRequired)                                \
  X(cuMemcpyDtoD, 3020, kRequired)                                \
  X(cuMemcpyHtoDAsync, 3020, kRequired)                           \
  X(cuMemcpyDtoHAsync, 3020, kRequired)                           \
  X(cuMemcpyDtoDAsync, 3020, kRequired)                           \
  X(cuMemsetD8, 3020, kRequired)                                  \
  X(cuMemsetD32, 3020, kRequired)                                 \
  X(cuMemsetD8Async, 3020, kRequired)                             \
  X(cuMemsetD32Async, 3020, kRequired)                            \
  X(cuMemHostAlloc, 2020, kRequired)                              \
  X(cuMemFreeHost, 2000, kRequired)                               \
  X(cuMemHostGetDevicePointer, 3020, kRequired)                   \
  X(cuPointerGetAttribute, 4000, kRequired)                       \
  X(cuStreamCreate, 2000, kRequired)                              \
  X(cuStreamDestroy, 4000, kRequired)                             \
  X(cuStreamSynchronize, 2000, kRequired)                         \
  X(cuStreamQuery, 2000, kRequired)                               \
  X(cuStreamWaitEvent, 3020, kRequired)                           \
  X(cuStreamBeginCapture, 10010, kRequired)                       \
  X(cuStreamEndCapture, 10000, kRequired)                         \
  X(cuStreamIsCapturing, 10000, kRequired)                        \
  X(cuThreadExchangeStreamCaptureMode, 10010, kRequired)          \
  X(cuGraphInstantiateWithFlags, 11040, kRequired)                \
  X(cuGraphUpload, 11010, kRequired)                              \
  X(cuGraphLaunch, 10000, kRequired)                              \
  X(cuGraphExecDestroy, 10000, kRequired)                         \
  X(cuGraphDestroy, 10000, kRequired)                             \
  X(cuEventCreate, 2000, kRequired)                               \
  X(cuEventRecord, 2000, kRequired)                               \
  X(cuEventQuery, 2000, kRequired)                                \
  X(cuEventSynchronize, 2000, kRequired)                          \
  X(cuEventElapsedTime, 2000, kRequired)                          \
  X(cuEventDestroy, 4000, kRequired)                              \
  X(cuLibraryLoadData, 12000, kRequired)                          \
  X(cuLibraryUnload, 12000, kRequired)                            \
  X(cuLibraryGetKernel, 12000, kRequired)                         \
  X(cuKernelGetFunction, 12000, kRequired)                        \
  X(cuKernelGetParamInfo, 12040, kOptional)                       \
  X(cuFuncLoad, 12040, kOptional)                                 \
  X(cuFuncGetAttribute, 2020, kRequired)                          \
  X(cuFuncSetAttribute, 9000, kRequired)                          \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, kRequired) \
  X(cuOccupancyMaxActiveClusters, 11070, kRequired)               \
  X(cuLaunchKernelEx, 11060, kRequired)                           \
  X(cuLaunchHostFunc, 10000, kRequired)                           \
  X(cuIpcGetMemHandle, 4010, kRequired)                           \
  X(cuIpcOpenMemHandle, 11000, kRequired)                         \
  X(cuIpcCloseMemHandle, 4010, kRequired)                         \
  X(cuMemGetAllocationGranularity, 10020, kRequired)              \
  X(cuMemAddressReserve, 10020, kRequired)                        \
  X(cuMemAddressFree, 10020, kRequired)                           \
  X(cuMemCreate, 10020, kRequired)                                \
  X(cuMemRelease, 10020, kRequired)                               \
  X(cuMemMap, 10020, kRequired)                                   \
  X(cuMemUnmap, 10020, kRequired)                                 \
  X(cuMemSetAccess, 10020, kRequired)                             \
  X(cuMemExportToShareableHandle, 10020, kRequired)               \
  X(cuMemImportFromShareableHandle, 10020, kRequired)             \
  X(cuMemRetainAllocationHandle, 11000, kRequired)                \
  X(cuMemGetAllocationPropertiesFromHandle, 10020, kRequired)

/// The oldest driver that loads our kernels (cuLibraryLoadData).
inline constexpr int kMinDriverVersion = 12000;

/// One opened driver. Its functions may be called from any thread.
class Driver {
 public:
#define COMMFUSE_MEMBER(name, version, need) decltype(&::name) name = nullptr;
  COMMFUSE_DRIVER_FUNCTIONS(COMMFUSE_MEMBER)
#undef COMMFUSE_MEMBER

  /// Opens COMMFUSE_LIBCUDA, else the system's libcuda.so.1, and looks up the functions; initialises nothing. Throws
  /// Error(kNotFound) naming the library or function that is missing, Error(kUnsupported) for a driver that is too old.
  [[nodiscard]] static Driver open(const Env& env);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int version() const noexcept { return version_; }  ///< 13000 = CUDA 13.0

 private:
  explicit Driver(DynamicLibrary library) : library_(std::move(library)) {}

  DynamicLibrary library_;
  std::string path_;
  int version_ = 0;
};

/// The driver of this process, opened and initialised at the first call. Throws as Driver::open, and Error(kNotFound)
/// where there is no device; a later call tries again. Never closed.
[[nodiscard]] const Driver& driver();

/// The same if an earlier call of driver() succeeded, else null. For destructors and the launch path.
[[nodiscard]] const Driver* driver_if_open() noexcept;

/// Throws Error with the call's text and the error's name and meaning: kOutOfMemory, kUnsupported or kDriver.
[[noreturn]] void throw_driver_error(CUresult result, const char* call);
/// The error's name and meaning in the driver's words; its number where the driver does not know it.
[[nodiscard]] std::string describe_driver_error(CUresult result);
void log_driver_error(CUresult result, const char* call) noexcept;

// COMMFUSE_DRIVER(cuMemFree(p)) makes the call and throws where it fails.
#define COMMFUSE_DRIVER(call)                                            \
  do {                                                                   \
    const CUresult commfuse_result = ::commfuse::runtime::driver().call; \
    if (commfuse_result != CUDA_SUCCESS) [[unlikely]]                    \
      ::commfuse::runtime::throw_driver_error(commfuse_result, #call);   \
  } while (false)

// The same for destructors: a failure is logged. Does nothing where the driver was never opened.
#define COMMFUSE_DRIVER_NOEXCEPT(call)                                         \
  do {                                                                         \
    if (const auto* commfuse_driver = ::commfuse::runtime::driver_if_open()) { \
      const CUresult commfuse_result = commfuse_driver->call;                  \
      if (commfuse_result != CUDA_SUCCESS) [[unlikely]]                        \
        ::commfuse::runtime::log_driver_error(commfuse_result, #call);         \
    }                                                                          \
  } while (false)

}  // namespace commfuse::runtime
