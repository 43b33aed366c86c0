#include "runtime/engine_memory.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string>

namespace commfuse::runtime {
namespace {

constexpr const char* kAllocateInstead =
    "Take the memory from ProcessGroup::allocate, or from cuMemAlloc (cudaMalloc), or from cuMemCreate with an "
    "exportable handle type";

[[noreturn]] void refuse(std::uintptr_t pointer, const std::string& cause, const std::string& remedy) {
  throw Error(Code::kUnsupported, fmt::format("peers cannot map the memory at {:#x}", pointer), cause, remedy);
}

/// The value, or `otherwise` where the driver does not tell.
template <typename Value>
Value attribute(std::uintptr_t pointer, CUpointer_attribute which, Value otherwise) {
  Value value = otherwise;
  return driver().cuPointerGetAttribute(&value, which, pointer) == CUDA_SUCCESS ? value : otherwise;
}

/// What one cuMemMap mapped at an address.
struct Mapped {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;  ///< 0: nothing
  std::uint64_t number = 0;
};
Mapped mapped_at(std::uintptr_t pointer) {
  return {attribute(pointer, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CUdeviceptr{0}),
          attribute(pointer, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, std::size_t{0}),
          attribute(pointer, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, std::uint64_t{0})};
}

MemoryKind vmm_kind(std::uintptr_t pointer, const AllocationHandle& handle, bool one_host) {
  CUmemAllocationProp properties{};
  COMMFUSE_DRIVER(cuMemGetAllocationPropertiesFromHandle(&properties, handle.get()));
  const auto types = static_cast<unsigned>(properties.requestedHandleTypes);
  if (one_host && (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return MemoryKind::kVmmDescriptor;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return MemoryKind::kVmmFabric;
  if (one_host || types == 0) {
    refuse(pointer, "it is memory of cuMemCreate that was made without an exportable handle type",
           "Set CUmemAllocationProp::requestedHandleTypes to a POSIX file descriptor or a fabric handle where it is "
           "made, or take it from ProcessGroup::allocate");
  }
  refuse(pointer, "it is memory of cuMemCreate without the handle type fabric, and the ranks run on several hosts",
         "Add CU_MEM_HANDLE_TYPE_FABRIC where it is made, or take it from ProcessGroup::allocate");
}

}  // namespace

EngineMemory EngineMemory::look_at(CUdevice device, std::uintptr_t pointer, std::uint64_t bytes, bool one_host) {
  unsigned type = 0;
  if (driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) != CUDA_SUCCESS) {
    refuse(pointer, "CUDA does not know it: it is ordinary host memory, was freed, or belongs to another context",
           kAllocateInstead);
  }
  if (attribute(pointer, CU_POINTER_ATTRIBUTE_IS_MANAGED, 0U) != 0) {
    refuse(pointer, "it is managed memory (cuMemAllocManaged), which moves between host and device", kAllocateInstead);
  }
  if (type != CU_MEMORYTYPE_DEVICE) refuse(pointer, "it is page-locked host memory", kAllocateInstead);
  const int ordinal = attribute(pointer, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, static_cast<int>(device));
  if (ordinal != device) {
    refuse(pointer, fmt::format("it lies on device {}, and this rank's kernels run on device {}", ordinal, device),
           "Register memory of the device whose context the group was made in");
  }
  if (attribute<CUmemoryPool>(pointer, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, nullptr) != nullptr) {
    refuse(pointer, "it comes from a memory pool (cuMemAllocAsync), which hands out parts of what it cannot export",
           kAllocateInstead);
  }

  EngineMemory memory;
  AllocationHandle handle;
  if (handle.retain(pointer)) {
    memory.kind = vmm_kind(pointer, handle, one_host);
    const Mapped first = mapped_at(pointer);
    memory.identity = {first.base, 0, first.number, first.number};
    std::size_t parts = 0;
    do {
      const Mapped next = mapped_at(memory.identity.base + memory.identity.bytes);
      if (next.bytes == 0) {
        refuse(pointer, "it does not end within what is mapped there", "Register what is mapped as a whole");
      }
      if (++parts > kMaxParts) {
        refuse(pointer, fmt::format("it is made of more than {} allocations", kMaxParts),
               "Register smaller buffers, or take the memory from ProcessGroup::allocate");
      }
      memory.identity.bytes += next.bytes;
      memory.identity.last = next.number;
    } while (memory.identity.base + memory.identity.bytes < pointer + bytes);
    return memory;
  }
  CUdeviceptr base = 0;
  std::size_t size = 0;
  COMMFUSE_DRIVER(cuMemGetAddressRange(&base, &size, pointer));
  if (pointer + bytes > base + size) {
    throw Error(Code::kInvalidArgument, fmt::format("cannot register {} bytes at {:#x}", bytes, pointer),
                fmt::format("its allocation ends after {} bytes", base + size - pointer),
                "Register what lies in one allocation");
  }
  if (attribute(pointer, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 1U) == 0) {
    refuse(pointer, "the driver cannot export it by IPC handle", kAllocateInstead);
  }
  if (!one_host) {
    refuse(pointer, "it is memory of cuMemAlloc, which cannot be mapped on other hosts",
           "Take it from ProcessGroup::allocate, or from cuMemCreate with the handle type fabric");
  }
  const auto number = attribute(pointer, CU_POINTER_ATTRIBUTE_BUFFER_ID, std::uint64_t{0});
  memory.kind = MemoryKind::kLegacyIpc;
  memory.identity = {base, size, number, number};
  return memory;
}

std::vector<MemoryPart> EngineMemory::offer() const {
  std::vector<MemoryPart> parts;
  if (kind == MemoryKind::kLegacyIpc) {
    CUipcMemHandle handle{};
    COMMFUSE_DRIVER(cuIpcGetMemHandle(&handle, identity.base));
    const auto* bytes = reinterpret_cast<const std::byte*>(&handle);
    parts.push_back({identity.bytes, Blob(bytes, bytes + sizeof(handle)), Descriptor()});
    return parts;
  }
  for (CUdeviceptr at = identity.base; at < identity.base + identity.bytes;) {
    const Mapped mapped = mapped_at(at);
    AllocationHandle handle;
    if (mapped.bytes == 0 || !handle.retain(at)) {
      throw Error(Code::kInvalidArgument, fmt::format("the memory at {:#x} was unmapped meanwhile", at));
    }
    parts.push_back(export_part(kind, handle.get(), mapped.bytes));
    at += mapped.bytes;
  }
  return parts;
}

}  // namespace commfuse::runtime
