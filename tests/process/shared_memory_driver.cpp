// Stands in for libcuda in several processes at once: device memory is memory of the host that processes really share,
// through descriptors or through handles. What it is like in this process stands in the environment:
//
//   COMMFUSE_TEST_DROP    if set, what is written to the memory of another process gets lost
//   COMMFUSE_TEST_STALE   if set, what is read from the memory of another process is as it was in the beginning
//   COMMFUSE_TEST_UUID    number of the device; ranks of the same number share it
//   COMMFUSE_TEST_ORDER   if set, the devices are numbered from the last: another CUDA_VISIBLE_DEVICES
//   COMMFUSE_TEST_ALONE   if set, devices cannot access each other
//   COMMFUSE_TEST_FABRIC  if set, memory can be shared by fabric handle
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "process/shared_memory.hpp"

namespace {

constexpr int kDevices = 4;

int g_context;
bool g_ended = false;

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }
/// From the number that is the same in all processes to the one of this process, and back.
int renumbered(int device) { return is_set("COMMFUSE_TEST_ORDER") ? kDevices - 1 - device : device; }
int own_device() {
  const char* number = std::getenv("COMMFUSE_TEST_UUID");
  return renumbered(number != nullptr ? std::atoi(number) : 0);
}

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult driver_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult error_name(CUresult error, const char** name) {
  static const std::map<int, const char*> kNames = {
      {1, "CUDA_ERROR_INVALID_VALUE"},    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {101, "CUDA_ERROR_INVALID_DEVICE"}, {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
      {400, "CUDA_ERROR_INVALID_HANDLE"}, {401, "CUDA_ERROR_ILLEGAL_STATE"},
      {800, "CUDA_ERROR_NOT_PERMITTED"},  {801, "CUDA_ERROR_NOT_SUPPORTED"}};
  const auto found = kNames.find(error);
  if (found == kNames.end()) return CUDA_ERROR_INVALID_VALUE;
  *name = found->second;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "so says the stand-in";
  return CUDA_SUCCESS;
}
CUresult device_count(int* count) {
  *count = kDevices;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult device_uuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, 0, sizeof(*uuid));
  uuid->bytes[0] = static_cast<char>(renumbered(device) + 1);
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
      *value = is_set("COMMFUSE_TEST_FABRIC") ? 1 : 0;
      return CUDA_SUCCESS;
    default:
      *value = 9;
      return CUDA_SUCCESS;
  }
}
CUresult can_access_peer(int* can, CUdevice, CUdevice) {
  *can = is_set("COMMFUSE_TEST_ALONE") ? 0 : 1;
  return CUDA_SUCCESS;
}
CUresult current_context(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(&g_context);
  return CUDA_SUCCESS;
}
CUresult context_device(CUdevice* device) {
  *device = own_device();
  return CUDA_SUCCESS;
}
CUresult context_id(CUcontext, unsigned long long* id) {
  *id = 7;
  return g_ended ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}
CUresult push_context(CUcontext) { return g_ended ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS; }
CUresult pop_context(CUcontext*) { return CUDA_SUCCESS; }
CUresult synchronize() { return CUDA_SUCCESS; }
CUresult upload_async(CUdeviceptr pointer, const void* source, std::size_t bytes, CUstream) {
  return shared_memory::upload(pointer, source, bytes);
}
/// Every call that is not stood in for.
CUresult unknown() { return CUDA_ERROR_NOT_FOUND; }

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* symbol, void** address, int,
                                                                               cuuint64_t,
                                                                               CUdriverProcAddressQueryResult* found) {
  using namespace shared_memory;
  static const std::map<std::string, void*> kCalls = {
      {"cuInit", reinterpret_cast<void*>(&init)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(&driver_version)},
      {"cuGetErrorName", reinterpret_cast<void*>(&error_name)},
      {"cuGetErrorString", reinterpret_cast<void*>(&error_string)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(&device_count)},
      {"cuDeviceGet", reinterpret_cast<void*>(&device_get)},
      {"cuDeviceGetUuid", reinterpret_cast<void*>(&device_uuid)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&device_attribute)},
      {"cuDeviceCanAccessPeer", reinterpret_cast<void*>(&can_access_peer)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&current_context)},
      {"cuCtxGetDevice", reinterpret_cast<void*>(&context_device)},
      {"cuCtxGetId", reinterpret_cast<void*>(&context_id)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(&push_context)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(&pop_context)},
      {"cuCtxSynchronize", reinterpret_cast<void*>(&synchronize)},
      {"cuMemAlloc", reinterpret_cast<void*>(&allocate)},
      {"cuMemFree", reinterpret_cast<void*>(&release)},
      {"cuMemHostAlloc", reinterpret_cast<void*>(&host_allocate)},
      {"cuMemFreeHost", reinterpret_cast<void*>(&host_free)},
      {"cuMemHostGetDevicePointer", reinterpret_cast<void*>(&host_device_pointer)},
      {"cuPointerGetAttribute", reinterpret_cast<void*>(&pointer_attribute)},
      {"cuMemGetAddressRange", reinterpret_cast<void*>(&address_range)},
      {"cuMemsetD32", reinterpret_cast<void*>(&set_words)},
      {"cuMemcpyHtoD", reinterpret_cast<void*>(&upload)},
      {"cuMemcpyDtoH", reinterpret_cast<void*>(&download)},
      {"cuMemcpyHtoDAsync", reinterpret_cast<void*>(&upload_async)},
      {"cuStreamCreate", reinterpret_cast<void*>(&stream_create)},
      {"cuStreamDestroy", reinterpret_cast<void*>(&stream_destroy)},
      {"cuStreamSynchronize", reinterpret_cast<void*>(&stream_synchronize)},
      {"cuIpcGetMemHandle", reinterpret_cast<void*>(&ipc_get)},
      {"cuIpcOpenMemHandle", reinterpret_cast<void*>(&ipc_open)},
      {"cuIpcCloseMemHandle", reinterpret_cast<void*>(&ipc_close)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(&create)},
      {"cuMemRetainAllocationHandle", reinterpret_cast<void*>(&retain)},
      {"cuMemGetAllocationPropertiesFromHandle", reinterpret_cast<void*>(&properties_of)},
      {"cuMemRelease", reinterpret_cast<void*>(&release_handle)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&free_addresses)},
      {"cuMemMap", reinterpret_cast<void*>(&map)},
      {"cuMemUnmap", reinterpret_cast<void*>(&unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&set_access)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&export_handle)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(&import_handle)},
  };
  *found = CU_GET_PROC_ADDRESS_SUCCESS;
  const auto call = kCalls.find(symbol);
  *address = call == kCalls.end() ? reinterpret_cast<void*>(&unknown) : call->second;
  return CUDA_SUCCESS;
}

/// Destroys the context, and with it what belongs to it.
extern "C" __attribute__((visibility("default"))) void commfuse_test_end_context() {
  g_ended = true;
  shared_memory::end_context();
}
