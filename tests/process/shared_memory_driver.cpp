// Stands in for libcuda in several processes at once: device memory is memory of the host that processes really share,
// through descriptors or through handles. What it shall do wrong in this process stands in the environment:
//
//   COMMFUSE_TEST_FAIL   name of a call, or several with spaces between, that fail with CUDA_ERROR_INVALID_DEVICE
//   COMMFUSE_TEST_KILL   name of a call in which this process dies
//   COMMFUSE_TEST_DROP   if set, what is written to the memory of another process gets lost
//   COMMFUSE_TEST_UUID   number of the device; ranks of the same number share it
//   COMMFUSE_TEST_ALONE  if set, devices cannot access each other
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;
constexpr int kDevices = 4;

struct Memory {
  std::size_t bytes = 0;
  int file = -1;  ///< the driver's own; -1 where another process owns the memory
};

int g_context;
int g_live = 0;                               ///< handles, addresses, allocations, mappings not yet given back
std::map<CUdeviceptr, Memory> g_allocations;  ///< of cuMemAlloc
std::map<CUdeviceptr, std::size_t> g_foreign;
std::map<CUmemGenericAllocationHandle, bool> g_handles;  ///< whether imported

CUdeviceptr address_of(void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
void* memory_at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

int new_file(std::size_t bytes) {
  const int file = ::memfd_create("device memory", MFD_CLOEXEC);
  if (file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
  return file;
}
void* map_file(int file, std::size_t bytes, void* at = nullptr) {
  return ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at != nullptr ? MAP_FIXED : 0), file, 0);
}
int own_device() {
  const char* number = std::getenv("COMMFUSE_TEST_UUID");
  return number != nullptr ? std::atoi(number) : 0;
}

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult driver_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult error_name(CUresult error, const char** name) {
  if (error != CUDA_ERROR_INVALID_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  *name = "CUDA_ERROR_INVALID_DEVICE";
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "invalid device ordinal";
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
  uuid->bytes[0] = static_cast<char>(device + 1);
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132 : 9;
  return CUDA_SUCCESS;
}
CUresult can_access_peer(int* can, CUdevice, CUdevice) {
  *can = std::getenv("COMMFUSE_TEST_ALONE") == nullptr ? 1 : 0;
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
CUresult push_context(CUcontext) { return CUDA_SUCCESS; }
CUresult pop_context(CUcontext*) { return CUDA_SUCCESS; }
CUresult synchronize() { return CUDA_SUCCESS; }

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes) {
  const int file = new_file(bytes);
  *pointer = address_of(map_file(file, bytes));
  g_allocations[*pointer] = {bytes, file};
  ++g_live;
  return CUDA_SUCCESS;
}
CUresult release(CUdeviceptr pointer) {
  const Memory memory = g_allocations.at(pointer);
  ::munmap(memory_at(pointer), memory.bytes);
  ::close(memory.file);
  g_allocations.erase(pointer);
  --g_live;
  return CUDA_SUCCESS;
}
CUresult host_allocate(void** memory, std::size_t bytes, unsigned) {
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  ++g_live;
  return CUDA_SUCCESS;
}
CUresult host_free(void* memory) {
  std::free(memory);
  --g_live;
  return CUDA_SUCCESS;
}
CUresult host_device_pointer(CUdeviceptr* pointer, void* memory, unsigned) {
  *pointer = address_of(memory);
  return CUDA_SUCCESS;
}
CUresult set_words(CUdeviceptr pointer, unsigned word, std::size_t count) {
  std::fill_n(static_cast<unsigned*>(memory_at(pointer)), count, word);
  return CUDA_SUCCESS;
}
CUresult upload(CUdeviceptr pointer, const void* source, std::size_t bytes) {
  const auto next = g_foreign.upper_bound(pointer);
  const bool is_foreign = next != g_foreign.begin() && pointer < std::prev(next)->first + std::prev(next)->second;
  if (is_foreign && std::getenv("COMMFUSE_TEST_DROP") != nullptr) return CUDA_SUCCESS;
  std::memcpy(memory_at(pointer), source, bytes);
  return CUDA_SUCCESS;
}
CUresult download(void* target, CUdeviceptr pointer, std::size_t bytes) {
  std::memcpy(target, memory_at(pointer), bytes);
  return CUDA_SUCCESS;
}

struct IpcHandle {
  int process;
  int file;
  std::size_t bytes;
};
CUresult ipc_get(CUipcMemHandle* handle, CUdeviceptr pointer) {
  const Memory& memory = g_allocations.at(pointer);
  const IpcHandle content{::getpid(), memory.file, memory.bytes};
  std::memcpy(handle, &content, sizeof(content));
  return CUDA_SUCCESS;
}
CUresult ipc_open(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned) {
  IpcHandle content;
  std::memcpy(&content, &handle, sizeof(content));
  const std::string path = "/proc/" + std::to_string(content.process) + "/fd/" + std::to_string(content.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return CUDA_ERROR_INVALID_HANDLE;
  *pointer = address_of(map_file(file, content.bytes));
  ::close(file);
  g_foreign[*pointer] = content.bytes;
  ++g_live;
  return CUDA_SUCCESS;
}
CUresult ipc_close(CUdeviceptr pointer) {
  ::munmap(memory_at(pointer), g_foreign.at(pointer));
  g_foreign.erase(pointer);
  --g_live;
  return CUDA_SUCCESS;
}

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  if (bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = static_cast<CUmemGenericAllocationHandle>(new_file(bytes));
  g_handles[*handle] = false;
  ++g_live;
  return CUDA_SUCCESS;
}
CUresult export_handle(void* target, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                       unsigned long long) {
  const int copy = ::fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0);
  std::memcpy(target, &copy, sizeof(copy));
  return CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle* handle, void* carried, CUmemAllocationHandleType) {
  const int copy = ::fcntl(static_cast<int>(reinterpret_cast<std::uintptr_t>(carried)), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = static_cast<CUmemGenericAllocationHandle>(copy);
  g_handles[*handle] = true;
  ++g_live;
  return CUDA_SUCCESS;
}
CUresult release_handle(CUmemGenericAllocationHandle handle) {
  ::close(static_cast<int>(handle));
  g_handles.erase(handle);
  --g_live;
  return CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* pointer, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  *pointer = address_of(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ++g_live;
  return CUDA_SUCCESS;
}
CUresult free_addresses(CUdeviceptr pointer, std::size_t bytes) {
  ::munmap(memory_at(pointer), bytes);
  --g_live;
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr pointer, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  if (map_file(static_cast<int>(handle), bytes, memory_at(pointer)) == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  if (g_handles.at(handle)) g_foreign[pointer] = bytes;
  ++g_live;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr pointer, std::size_t bytes) {
  ::mmap(memory_at(pointer), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  g_foreign.erase(pointer);
  --g_live;
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) { return CUDA_SUCCESS; }

CUresult refuse() { return CUDA_ERROR_INVALID_DEVICE; }

CUresult die() {
  ::raise(SIGKILL);
  return CUDA_SUCCESS;
}

bool is_named(const std::string& call, const char* variable) {
  const char* calls = std::getenv(variable);
  return calls != nullptr && (" " + std::string(calls) + " ").find(" " + call + " ") != std::string::npos;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int commfuse_test_live_objects() { return g_live; }

__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* symbol, void** address, int, cuuint64_t,
                                                                    CUdriverProcAddressQueryResult* found) {
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
      {"cuCtxPushCurrent", reinterpret_cast<void*>(&push_context)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(&pop_context)},
      {"cuCtxSynchronize", reinterpret_cast<void*>(&synchronize)},
      {"cuMemAlloc", reinterpret_cast<void*>(&allocate)},
      {"cuMemFree", reinterpret_cast<void*>(&release)},
      {"cuMemHostAlloc", reinterpret_cast<void*>(&host_allocate)},
      {"cuMemFreeHost", reinterpret_cast<void*>(&host_free)},
      {"cuMemHostGetDevicePointer", reinterpret_cast<void*>(&host_device_pointer)},
      {"cuMemsetD32", reinterpret_cast<void*>(&set_words)},
      {"cuMemcpyHtoD", reinterpret_cast<void*>(&upload)},
      {"cuMemcpyDtoH", reinterpret_cast<void*>(&download)},
      {"cuIpcGetMemHandle", reinterpret_cast<void*>(&ipc_get)},
      {"cuIpcOpenMemHandle", reinterpret_cast<void*>(&ipc_open)},
      {"cuIpcCloseMemHandle", reinterpret_cast<void*>(&ipc_close)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(&create)},
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
  if (is_named(symbol, "COMMFUSE_TEST_KILL")) {
    *address = reinterpret_cast<void*>(&die);
  } else if (call == kCalls.end() || is_named(symbol, "COMMFUSE_TEST_FAIL")) {
    *address = reinterpret_cast<void*>(&refuse);
  } else {
    *address = call->second;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
