// Stands in for libcuda: one imaginary device that loads everything, and fails as it is told.
#include "shims/cuda_shim.hpp"

#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

namespace {

using commfuse::test::CudaShim;

CudaShim g_shim;

void note(const char* call) {
  const std::size_t used = std::strlen(g_shim.calls);
  std::snprintf(g_shim.calls + used, sizeof g_shim.calls - used, "%s ", call);
}

CUresult init(unsigned) { return static_cast<CUresult>(g_shim.init_result); }
CUresult driver_version(int* version) {
  *version = g_shim.driver_version;
  return CUDA_SUCCESS;
}
CUresult error_name(CUresult error, const char** name) {
  if (error != CUDA_ERROR_NO_DEVICE && error != CUDA_ERROR_OUT_OF_MEMORY && error != CUDA_ERROR_INVALID_IMAGE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *name = error == CUDA_ERROR_NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                              : "CUDA_ERROR_INVALID_IMAGE";
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "words of the driver";
  return CUDA_SUCCESS;
}
CUresult device_count(int* count) {
  *count = g_shim.device_count;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? g_shim.compute_major
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? g_shim.compute_minor
                                                                       : 0;
  return CUDA_SUCCESS;
}
CUresult current_context(CUcontext* context) {
  *context = g_shim.context_current ? reinterpret_cast<CUcontext>(&g_shim) : nullptr;
  return CUDA_SUCCESS;
}
CUresult context_device(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  const int before = g_shim.capture_mode;
  g_shim.capture_mode = *mode;
  *mode = static_cast<CUstreamCaptureMode>(before);
  return CUDA_SUCCESS;
}
CUresult load_library(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                      unsigned) {
  note("cuLibraryLoadData");
  if (g_shim.capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) g_shim.always_relaxed_when_loading = false;
  if (g_shim.load_result != 0) return static_cast<CUresult>(g_shim.load_result);
  ++g_shim.libraries;
  *library = reinterpret_cast<CUlibrary>(&g_shim);
  return CUDA_SUCCESS;
}
CUresult unload_library(CUlibrary) {
  note("cuLibraryUnload");
  --g_shim.libraries;
  return CUDA_SUCCESS;
}
CUresult get_kernel(CUkernel* kernel, CUlibrary, const char*) {
  *kernel = reinterpret_cast<CUkernel>(&g_shim);
  return CUDA_SUCCESS;
}
CUresult get_function(CUfunction* function, CUkernel) {
  *function = reinterpret_cast<CUfunction>(&g_shim);
  return CUDA_SUCCESS;
}
CUresult param_info(CUkernel, std::size_t, std::size_t* offset, std::size_t* size) {
  note("cuKernelGetParamInfo");
  *offset = g_shim.param_offset;
  *size = g_shim.param_bytes;
  return CUDA_SUCCESS;
}
CUresult load_function(CUfunction) {
  note("cuFuncLoad");
  return CUDA_SUCCESS;
}
CUresult function_attribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 40 : 0;
  return CUDA_SUCCESS;
}
CUresult occupancy(int* blocks, CUfunction, int, std::size_t) {
  note("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  *blocks = g_shim.blocks_per_sm;
  return CUDA_SUCCESS;
}
CUresult clusters(int* count, CUfunction, const CUlaunchConfig*) {
  note("cuOccupancyMaxActiveClusters");
  *count = g_shim.clusters;
  return CUDA_SUCCESS;
}
CUresult fill(CUdeviceptr address, const void* value, std::size_t size, std::size_t count) {
  if (g_shim.memset_result != 0) return static_cast<CUresult>(g_shim.memset_result);
  g_shim.memset_bytes += size * count;
  g_shim.memset_end = address + size * count;
  for (std::size_t i = 0; g_shim.memset_writes && i < count; ++i) {
    std::memcpy(reinterpret_cast<char*>(address) + i * size, value, size);
  }
  return CUDA_SUCCESS;
}
CUresult fill_words(CUdeviceptr address, unsigned word, std::size_t count, CUstream) {
  return fill(address, &word, sizeof(word), count);
}
CUresult fill_bytes(CUdeviceptr address, unsigned char byte, std::size_t count, CUstream) {
  return fill(address, &byte, 1, count);
}
/// Every call that no test is about.
CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

extern "C" {

__attribute__((visibility("default"))) CudaShim* commfuse_cuda_shim() { return &g_shim; }

__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* symbol, void** address, int version,
                                                                    cuuint64_t, CUdriverProcAddressQueryResult* found) {
  static const std::map<std::string, void*> kCalls = {
      {"cuInit", reinterpret_cast<void*>(&init)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(&driver_version)},
      {"cuGetErrorName", reinterpret_cast<void*>(&error_name)},
      {"cuGetErrorString", reinterpret_cast<void*>(&error_string)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(&device_count)},
      {"cuDeviceGet", reinterpret_cast<void*>(&device_get)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&device_attribute)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&current_context)},
      {"cuCtxGetDevice", reinterpret_cast<void*>(&context_device)},
      {"cuMemsetD32Async", reinterpret_cast<void*>(&fill_words)},
      {"cuMemsetD8Async", reinterpret_cast<void*>(&fill_bytes)},
      {"cuThreadExchangeStreamCaptureMode", reinterpret_cast<void*>(&exchange_capture_mode)},
      {"cuLibraryLoadData", reinterpret_cast<void*>(&load_library)},
      {"cuLibraryUnload", reinterpret_cast<void*>(&unload_library)},
      {"cuLibraryGetKernel", reinterpret_cast<void*>(&get_kernel)},
      {"cuKernelGetFunction", reinterpret_cast<void*>(&get_function)},
      {"cuKernelGetParamInfo", reinterpret_cast<void*>(&param_info)},
      {"cuFuncLoad", reinterpret_cast<void*>(&load_function)},
      {"cuFuncGetAttribute", reinterpret_cast<void*>(&function_attribute)},
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", reinterpret_cast<void*>(&occupancy)},
      {"cuOccupancyMaxActiveClusters", reinterpret_cast<void*>(&clusters)},
  };
  *found = CU_GET_PROC_ADDRESS_SUCCESS;
  *address = nullptr;
  if (version > g_shim.driver_version) {  // a call that is newer than this driver
    *found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_ERROR_NOT_FOUND;
  }
  const auto call = kCalls.find(symbol);
  *address = call != kCalls.end() ? call->second : reinterpret_cast<void*>(&not_supported);
  return CUDA_SUCCESS;
}

}  // extern "C"
