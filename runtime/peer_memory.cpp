#include "runtime/peer_memory.hpp"

#include <fmt/format.h>

#include <cstring>

#include "runtime/driver.hpp"

namespace commfuse::runtime {
namespace {

constexpr CUmemAllocationHandleType kDescriptorType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Holds memory of cuMemCreate until it is mapped.
class AllocationHandle {
 public:
  AllocationHandle() = default;
  AllocationHandle(const AllocationHandle&) = delete;
  AllocationHandle& operator=(const AllocationHandle&) = delete;
  ~AllocationHandle() {
    if (is_held_) COMMFUSE_DRIVER_NOEXCEPT(cuMemRelease(handle_));
  }

  void create(const CUmemAllocationProp& properties, std::size_t bytes) {
    COMMFUSE_DRIVER(cuMemCreate(&handle_, bytes, &properties, 0));
    is_held_ = true;
  }
  void import(int descriptor) {
    // The descriptor travels in the pointer itself.
    void* carried = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    COMMFUSE_DRIVER(cuMemImportFromShareableHandle(&handle_, carried, kDescriptorType));
    is_held_ = true;
  }
  [[nodiscard]] CUmemGenericAllocationHandle get() const noexcept { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  bool is_held_ = false;
};

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// The delegation makes the destructor run where a step fails.
MappedRange::MappedRange(CUmemGenericAllocationHandle handle, CUdevice device, std::size_t bytes) : MappedRange() {
  bytes_ = bytes;
  COMMFUSE_DRIVER(cuMemAddressReserve(&pointer_, bytes, 0, 0, 0));
  COMMFUSE_DRIVER(cuMemMap(pointer_, bytes, 0, handle, 0));
  is_mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  COMMFUSE_DRIVER(cuMemSetAccess(pointer_, bytes, &access, 1));
}

MappedRange::~MappedRange() {
  if (is_mapped_) COMMFUSE_DRIVER_NOEXCEPT(cuMemUnmap(pointer_, bytes_));
  if (pointer_ != 0) COMMFUSE_DRIVER_NOEXCEPT(cuMemAddressFree(pointer_, bytes_));
}

OwnMemory::OwnMemory(MemoryKind kind, CUdevice device, std::size_t bytes) {
  if (kind == MemoryKind::kLegacyIpc) {
    buffer_ = DeviceBuffer(bytes);
    bytes_ = bytes;
    CUipcMemHandle handle{};
    COMMFUSE_DRIVER(cuIpcGetMemHandle(&handle, buffer_.pointer()));
    handle_.resize(sizeof(handle));
    std::memcpy(handle_.data(), &handle, sizeof(handle));
    return;
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kDescriptorType;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  std::size_t unit = 0;
  COMMFUSE_DRIVER(cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  bytes_ = round_up(bytes, unit);
  AllocationHandle handle;
  handle.create(properties, bytes_);
  int descriptor = -1;
  COMMFUSE_DRIVER(cuMemExportToShareableHandle(&descriptor, handle.get(), kDescriptorType, 0));
  descriptor_ = Descriptor(descriptor);
  range_ = MappedRange(handle.get(), device, bytes_);
}

PeerMapping::PeerMapping(MemoryKind kind, CUdevice device, std::size_t bytes, std::span<const std::byte> handle,
                         int descriptor)
    : PeerMapping() {
  if (kind == MemoryKind::kLegacyIpc) {
    CUipcMemHandle opaque{};
    if (handle.size() != sizeof(opaque)) {
      throw Error(Code::kInvalidInput, "cannot map a peer's memory",
                  fmt::format("its handle has {} bytes instead of {}", handle.size(), sizeof(opaque)));
    }
    std::memcpy(&opaque, handle.data(), sizeof(opaque));
    COMMFUSE_DRIVER(cuIpcOpenMemHandle(&opened_, opaque, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return;
  }
  AllocationHandle imported;
  imported.import(descriptor);
  range_ = MappedRange(imported.get(), device, bytes);
}

PeerMapping::~PeerMapping() {
  if (opened_ != 0) COMMFUSE_DRIVER_NOEXCEPT(cuIpcCloseMemHandle(opened_));
}

}  // namespace commfuse::runtime
