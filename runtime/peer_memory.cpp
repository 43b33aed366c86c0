#include "runtime/peer_memory.hpp"

#include <fmt/format.h>

#include <cstring>

namespace commfuse::runtime {
namespace {

constexpr std::size_t kMaxHandleBytes = 256;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

Blob blob_of(const void* object, std::size_t bytes) {
  const auto* start = static_cast<const std::byte*>(object);
  return {start, start + bytes};
}

template <typename Handle>
Handle handle_of(const Blob& blob) {
  Handle handle{};
  if (blob.size() != sizeof(handle)) {
    throw Error(Code::kInvalidInput, "cannot map a peer's memory",
                fmt::format("its handle has {} bytes instead of {}", blob.size(), sizeof(handle)));
  }
  std::memcpy(&handle, blob.data(), sizeof(handle));
  return handle;
}

AllocationHandle import_part(MemoryKind kind, const MemoryPart& part) {
  AllocationHandle handle;
  if (kind == MemoryKind::kVmmDescriptor) {
    // The descriptor travels in the pointer itself.
    handle.import(reinterpret_cast<void*>(static_cast<std::uintptr_t>(part.descriptor.get())), handle_type(kind));
  } else {
    auto fabric = handle_of<CUmemFabricHandle>(part.handle);
    handle.import(&fabric, handle_type(kind));
  }
  return handle;
}

}  // namespace

void write_parts(ByteWriter& writer, std::span<const MemoryPart> parts) {
  writer.integer(static_cast<std::uint32_t>(parts.size()));
  for (const MemoryPart& part : parts) {
    writer.integer(part.bytes);
    writer.integer(static_cast<std::uint32_t>(part.handle.size()));
    writer.raw(part.handle);
  }
}

std::vector<MemoryPart> read_parts(ByteReader& reader) {
  const auto count = reader.integer<std::uint32_t>();
  std::vector<MemoryPart> parts;
  for (std::uint32_t i = 0; i < count && i < kMaxParts && reader.is_good(); ++i) {
    MemoryPart part;
    part.bytes = reader.integer<std::uint64_t>();
    const auto handle = reader.raw(std::min<std::size_t>(reader.integer<std::uint32_t>(), kMaxHandleBytes));
    part.handle.assign(handle.begin(), handle.end());
    parts.push_back(std::move(part));
  }
  if (!reader.is_good() || parts.size() != count) {
    throw Error(Code::kInvalidInput, "cannot read a peer's description of its memory", "it does not follow the format",
                "Start the same build on all ranks");
  }
  return parts;
}

std::uint64_t total_bytes(std::span<const MemoryPart> parts) noexcept {
  std::uint64_t bytes = 0;
  for (const MemoryPart& part : parts) bytes += part.bytes;
  return bytes;
}

CUmemAllocationHandleType handle_type(MemoryKind kind) noexcept {
  return kind == MemoryKind::kVmmFabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

MemoryPart export_part(MemoryKind kind, CUmemGenericAllocationHandle handle, std::uint64_t bytes) {
  MemoryPart part;
  part.bytes = bytes;
  if (kind == MemoryKind::kVmmFabric) {
    CUmemFabricHandle fabric{};
    COMMFUSE_DRIVER(cuMemExportToShareableHandle(&fabric, handle, handle_type(kind), 0));
    part.handle = blob_of(&fabric, sizeof(fabric));
  } else {
    int descriptor = -1;
    COMMFUSE_DRIVER(cuMemExportToShareableHandle(&descriptor, handle, handle_type(kind), 0));
    part.descriptor = Descriptor(descriptor);
  }
  return part;
}

// The delegation makes the destructor run where a step fails; likewise below.
MappedRange::MappedRange(std::size_t bytes) : MappedRange() {
  COMMFUSE_DRIVER(cuMemAddressReserve(&pointer_, bytes, 0, 0, 0));
  bytes_ = bytes;
}

void MappedRange::append(CUmemGenericAllocationHandle handle, CUdevice device, std::size_t bytes) {
  const CUdeviceptr start = pointer_ + mapped_;
  COMMFUSE_DRIVER(cuMemMap(start, bytes, 0, handle, 0));
  mapped_ += bytes;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  COMMFUSE_DRIVER(cuMemSetAccess(start, bytes, &access, 1));
}

void MappedRange::unmap() noexcept {
  if (mapped_ != 0) COMMFUSE_DRIVER_NOEXCEPT(cuMemUnmap(pointer_, mapped_));
  mapped_ = 0;
}

MappedRange::~MappedRange() {
  unmap();
  if (pointer_ != 0) COMMFUSE_DRIVER_NOEXCEPT(cuMemAddressFree(pointer_, bytes_));
}

OwnMemory::OwnMemory(MemoryKind kind, CUdevice device, std::size_t bytes) : OwnMemory() {
  kind_ = kind;
  device_ = device;
  if (kind == MemoryKind::kLegacyIpc) {
    buffer_ = DeviceBuffer(bytes);
    bytes_ = bytes;
    CUipcMemHandle handle{};
    COMMFUSE_DRIVER(cuIpcGetMemHandle(&handle, buffer_.pointer()));
    parts_.push_back({bytes, blob_of(&handle, sizeof(handle)), Descriptor()});
    return;
  }
  bytes_ = bytes;
  fill_range();
}

void OwnMemory::fill_range() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = handle_type(kind_);
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_;
  std::size_t unit = 0;
  COMMFUSE_DRIVER(cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  bytes_ = round_up(bytes_, unit);
  AllocationHandle handle;
  handle.create(properties, bytes_);
  parts_.clear();
  parts_.push_back(export_part(kind_, handle.get(), bytes_));
  if (range_.pointer() == 0) range_ = MappedRange(bytes_);
  range_.append(handle.get(), device_, bytes_);
}

void OwnMemory::fill(std::uint32_t word, std::uint64_t offset, std::uint64_t bytes) const {
  COMMFUSE_DRIVER(cuMemsetD32(pointer() + offset, word, bytes / sizeof(word)));
  // A memset of device memory may return before it is done.
  COMMFUSE_DRIVER(cuCtxSynchronize());
}

void OwnMemory::suspend() noexcept { range_.unmap(); }

void OwnMemory::resume() {
  if (range_.pointer() != 0) fill_range();
}

PeerMapping::PeerMapping(MemoryKind kind, CUdevice device, std::span<const MemoryPart> parts) : PeerMapping() {
  if (parts.empty() || (kind == MemoryKind::kLegacyIpc && parts.size() != 1)) {
    throw Error(Code::kInvalidInput, "cannot map a peer's memory",
                fmt::format("it is described as {} allocations", parts.size()));
  }
  if (kind == MemoryKind::kLegacyIpc) {
    COMMFUSE_DRIVER(cuIpcOpenMemHandle(&opened_, handle_of<CUipcMemHandle>(parts.front().handle),
                                       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return;
  }
  range_ = MappedRange(total_bytes(parts));
  resume(kind, device, parts);
}

void PeerMapping::resume(MemoryKind kind, CUdevice device, std::span<const MemoryPart> parts) {
  if (range_.bytes() != total_bytes(parts)) {
    throw Error(Code::kInvalidInput, "cannot map a peer's memory", "its size is not what it was");
  }
  for (const MemoryPart& part : parts) range_.append(import_part(kind, part).get(), device, part.bytes);
}

PeerMapping::~PeerMapping() {
  if (opened_ != 0) COMMFUSE_DRIVER_NOEXCEPT(cuIpcCloseMemHandle(opened_));
}

}  // namespace commfuse::runtime
