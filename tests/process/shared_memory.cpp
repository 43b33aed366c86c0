#include "process/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace shared_memory {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

std::size_t g_limit = 0;          ///< of g_bytes; 0: none
int g_wrong_calls = 0;            ///< that gave back what is not there
std::size_t g_bytes = 0;          ///< of device memory that this process made and that is not free yet
std::uint64_t g_next_number = 1;  ///< of handles and allocations

/// Device memory. Goes with the last allocation, handle or mapping.
class Physical {
 public:
  Physical(int file, std::size_t bytes, bool is_foreign, unsigned types)
      : file_(file), bytes_(bytes), is_foreign_(is_foreign), types_(types), number_(g_next_number++) {
    if (!is_foreign_) g_bytes += bytes_;
  }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical() {
    ::close(file_);
    if (!is_foreign_) g_bytes -= bytes_;
  }
  [[nodiscard]] int file() const { return file_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_foreign() const { return is_foreign_; }
  [[nodiscard]] unsigned types() const { return types_; }
  [[nodiscard]] std::uint64_t number() const { return number_; }

 private:
  int file_;
  std::size_t bytes_;
  bool is_foreign_;  ///< another process made it
  unsigned types_;   ///< CUmemAllocationHandleType flags
  std::uint64_t number_;
};
using PhysicalPointer = std::shared_ptr<Physical>;

enum class Source { kPlain, kManaged, kPool, kIpc, kVmm };
struct Range {
  std::size_t bytes = 0;
  PhysicalPointer memory;
  Source source = Source::kPlain;
};

std::map<CUdeviceptr, Range> g_ranges;  ///< what can be touched: of every source
std::map<CUmemGenericAllocationHandle, PhysicalPointer> g_handles;
std::map<CUdeviceptr, std::size_t> g_reserved;
std::map<CUdeviceptr, std::size_t> g_host;
std::set<CUstream> g_streams;

CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
void* memory_at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

PhysicalPointer make_memory(std::size_t bytes, unsigned types) {
  const int file = ::memfd_create("device memory", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
  return std::make_shared<Physical>(file, bytes, false, types);
}
void* map_file(int file, std::size_t bytes, void* at = nullptr) {
  return ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at != nullptr ? MAP_FIXED : 0), file, 0);
}
template <typename Map>
typename Map::const_iterator holding(const Map& map, CUdeviceptr pointer) {
  return std::find_if(map.begin(), map.end(), [&](const auto& entry) {
    if constexpr (std::is_same_v<typename Map::mapped_type, Range>) {
      return pointer >= entry.first && pointer < entry.first + entry.second.bytes;
    } else {
      return pointer >= entry.first && pointer < entry.first + entry.second;
    }
  });
}
CUmemGenericAllocationHandle hold(PhysicalPointer memory) {
  const CUmemGenericAllocationHandle handle = g_next_number++;
  g_handles[handle] = std::move(memory);
  return handle;
}

/// Whether it is memory of another process.
bool is_foreign(CUdeviceptr pointer) {
  const auto found = holding(g_ranges, pointer);
  return found != g_ranges.end() && found->second.memory->is_foreign();
}
CUresult wrong_call() {
  ++g_wrong_calls;
  return CUDA_ERROR_INVALID_VALUE;
}

/// How memory of another process is found: in a CUipcMemHandle or a CUmemFabricHandle.
struct ForeignHandle {
  int process;
  int file;
  std::size_t bytes;
};
PhysicalPointer open_foreign(const ForeignHandle& handle, unsigned types) {
  if (handle.process == ::getpid()) return nullptr;  // as the real one for IPC
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  return file < 0 ? nullptr : std::make_shared<Physical>(file, handle.bytes, true, types);
}

}  // namespace

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes) {
  if (g_limit != 0 && g_bytes + bytes > g_limit) return CUDA_ERROR_OUT_OF_MEMORY;
  PhysicalPointer memory = make_memory(bytes, 0);
  *pointer = address_of(map_file(memory->file(), bytes));
  g_ranges[*pointer] = {bytes, std::move(memory), Source::kPlain};
  return CUDA_SUCCESS;
}
CUresult release(CUdeviceptr pointer) {
  const auto range = g_ranges.find(pointer);
  if (range == g_ranges.end() || range->second.source == Source::kVmm) return wrong_call();
  ::munmap(memory_at(pointer), range->second.bytes);
  g_ranges.erase(range);
  return CUDA_SUCCESS;
}
CUresult host_allocate(void** memory, std::size_t bytes, unsigned) {
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  g_host[address_of(*memory)] = bytes;
  return CUDA_SUCCESS;
}
CUresult host_free(void* memory) {
  if (g_host.erase(address_of(memory)) == 0) return wrong_call();
  std::free(memory);
  return CUDA_SUCCESS;
}
CUresult host_device_pointer(CUdeviceptr* pointer, void* memory, unsigned) {
  *pointer = address_of(memory);
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const auto put = [value](auto content) {
    std::memcpy(value, &content, sizeof(content));
    return CUDA_SUCCESS;
  };
  const auto found = holding(g_ranges, pointer);
  if (found == g_ranges.end()) {
    if (holding(g_host, pointer) == g_host.end()) return CUDA_ERROR_INVALID_VALUE;
    return attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? put(unsigned{CU_MEMORYTYPE_HOST}) : put(0U);
  }
  const auto& [base, range] = *found;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(unsigned{CU_MEMORYTYPE_DEVICE});
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(static_cast<unsigned>(range.source == Source::kManaged));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(range.source == Source::kPool ? &g_next_number : nullptr);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(static_cast<unsigned>(range.source == Source::kPlain));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put(range.memory->number());
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return range.source == Source::kVmm ? put(base) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return range.source == Source::kVmm ? put(range.bytes) : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr pointer) {
  const auto found = holding(g_ranges, pointer);
  if (found == g_ranges.end()) return CUDA_ERROR_NOT_FOUND;
  *base = found->first;
  *bytes = found->second.bytes;
  return CUDA_SUCCESS;
}

CUresult set_words(CUdeviceptr pointer, unsigned word, std::size_t count) {
  std::fill_n(static_cast<unsigned*>(memory_at(pointer)), count, word);
  return CUDA_SUCCESS;
}
CUresult upload(CUdeviceptr pointer, const void* source, std::size_t bytes) {
  if (is_foreign(pointer) && std::getenv("COMMFUSE_TEST_DROP") != nullptr) return CUDA_SUCCESS;
  std::memcpy(memory_at(pointer), source, bytes);
  return CUDA_SUCCESS;
}
CUresult download(void* target, CUdeviceptr pointer, std::size_t bytes) {
  if (is_foreign(pointer) && std::getenv("COMMFUSE_TEST_STALE") != nullptr) {
    std::memset(target, 0xff, bytes);
    return CUDA_SUCCESS;
  }
  std::memcpy(target, memory_at(pointer), bytes);
  return CUDA_SUCCESS;
}

CUresult ipc_get(CUipcMemHandle* handle, CUdeviceptr pointer) {
  const auto found = holding(g_ranges, pointer);
  if (found == g_ranges.end() || found->second.source != Source::kPlain) return CUDA_ERROR_INVALID_VALUE;
  const ForeignHandle content{::getpid(), found->second.memory->file(), found->second.bytes};
  std::memcpy(handle, &content, sizeof(content));
  return CUDA_SUCCESS;
}
CUresult ipc_open(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned) {
  ForeignHandle content;
  std::memcpy(&content, &handle, sizeof(content));
  PhysicalPointer memory = open_foreign(content, 0);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pointer = address_of(map_file(memory->file(), content.bytes));
  g_ranges[*pointer] = {content.bytes, std::move(memory), Source::kIpc};
  return CUDA_SUCCESS;
}
CUresult ipc_close(CUdeviceptr pointer) { return release(pointer); }

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                unsigned long long) {
  if (bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (g_limit != 0 && g_bytes + bytes > g_limit) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto types = static_cast<unsigned>(properties->requestedHandleTypes);
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && std::getenv("COMMFUSE_TEST_FABRIC") == nullptr) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  *handle = hold(make_memory(bytes, types));
  return CUDA_SUCCESS;
}
CUresult retain(CUmemGenericAllocationHandle* handle, void* address) {
  const auto found = holding(g_ranges, address_of(address));
  if (found == g_ranges.end() || found->second.source != Source::kVmm) return CUDA_ERROR_INVALID_VALUE;
  *handle = hold(found->second.memory);
  return CUDA_SUCCESS;
}
CUresult properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  *properties = {};
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(g_handles.at(handle)->types());
  return CUDA_SUCCESS;
}
CUresult export_handle(void* target, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                       unsigned long long) {
  const PhysicalPointer& memory = g_handles.at(handle);
  if ((memory->types() & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    const ForeignHandle content{::getpid(), memory->file(), memory->bytes()};
    std::memcpy(target, &content, sizeof(content));
  } else {
    const int copy = ::fcntl(memory->file(), F_DUPFD_CLOEXEC, 0);
    std::memcpy(target, &copy, sizeof(copy));
  }
  return CUDA_SUCCESS;
}
CUresult import_handle(CUmemGenericAllocationHandle* handle, void* carried, CUmemAllocationHandleType type) {
  PhysicalPointer memory;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    ForeignHandle content;
    std::memcpy(&content, carried, sizeof(content));
    memory = open_foreign(content, type);
  } else if (const int copy = ::fcntl(static_cast<int>(address_of(carried)), F_DUPFD_CLOEXEC, 0); copy >= 0) {
    memory = std::make_shared<Physical>(copy, static_cast<std::size_t>(::lseek(copy, 0, SEEK_END)), true, type);
  }
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = hold(std::move(memory));
  return CUDA_SUCCESS;
}
CUresult release_handle(CUmemGenericAllocationHandle handle) {
  return g_handles.erase(handle) != 0 ? CUDA_SUCCESS : wrong_call();
}
CUresult reserve(CUdeviceptr* pointer, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  *pointer = address_of(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  g_reserved[*pointer] = bytes;
  return CUDA_SUCCESS;
}
CUresult free_addresses(CUdeviceptr pointer, std::size_t bytes) {
  if (g_reserved.erase(pointer) == 0) return wrong_call();
  ::munmap(memory_at(pointer), bytes);
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr pointer, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  const PhysicalPointer& memory = g_handles.at(handle);
  const auto place = holding(g_reserved, pointer);
  if (place == g_reserved.end() || pointer + bytes > place->first + place->second || bytes > memory->bytes() ||
      holding(g_ranges, pointer) != g_ranges.end() ||
      map_file(memory->file(), bytes, memory_at(pointer)) == MAP_FAILED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  g_ranges[pointer] = {bytes, memory, Source::kVmm};
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr pointer, std::size_t bytes) {
  for (CUdeviceptr at = pointer; at < pointer + bytes;) {
    const auto range = g_ranges.find(at);
    if (range == g_ranges.end()) return wrong_call();
    at += range->second.bytes;
    g_ranges.erase(range);
  }
  ::mmap(memory_at(pointer), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) { return CUDA_SUCCESS; }

CUresult stream_create(CUstream* stream, unsigned) {
  static std::uintptr_t number = 0;
  *stream = reinterpret_cast<CUstream>(++number);
  g_streams.insert(*stream);
  return CUDA_SUCCESS;
}
CUresult stream_destroy(CUstream stream) { return g_streams.erase(stream) == 1 ? CUDA_SUCCESS : wrong_call(); }
CUresult stream_synchronize(CUstream stream) { return g_streams.count(stream) == 1 ? CUDA_SUCCESS : wrong_call(); }

void end_context() {
  std::erase_if(g_ranges, [](const auto& range) { return range.second.source != Source::kVmm; });
  g_host.clear();
  g_streams.clear();
}

}  // namespace shared_memory

extern "C" {

/// How much device memory there is; 0: as much as is asked for.
__attribute__((visibility("default"))) void commfuse_test_limit_memory(std::size_t bytes) {
  shared_memory::g_limit = bytes;
}
/// Calls that gave back what was not there.
__attribute__((visibility("default"))) int commfuse_test_wrong_calls() { return shared_memory::g_wrong_calls; }

/// Allocations, handles, mappings, reservations and streams that were not given back.
__attribute__((visibility("default"))) int commfuse_test_live_objects() {
  using namespace shared_memory;
  return static_cast<int>(g_ranges.size() + g_handles.size() + g_reserved.size() + g_host.size() + g_streams.size());
}
/// Mappings of other processes' memory.
__attribute__((visibility("default"))) int commfuse_test_foreign_mappings() {
  using namespace shared_memory;
  return static_cast<int>(std::count_if(g_ranges.begin(), g_ranges.end(),
                                        [](const auto& range) { return range.second.memory->is_foreign(); }));
}
/// Device memory of this process that is in use.
__attribute__((visibility("default"))) std::size_t commfuse_test_device_bytes() { return shared_memory::g_bytes; }
/// Memory as cuMemAllocManaged ("managed") or cuMemAllocAsync ("pool") make it. Freed by cuMemFree.
__attribute__((visibility("default"))) CUdeviceptr commfuse_test_allocate(const char* source, std::size_t bytes) {
  using namespace shared_memory;
  CUdeviceptr pointer = 0;
  allocate(&pointer, bytes);
  g_ranges.at(pointer).source = std::string(source) == "managed" ? Source::kManaged : Source::kPool;
  return pointer;
}

}  // extern "C"
