// Memory that other processes map, and such a mapping.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"
#include "runtime/allocation_handle.hpp"
#include "runtime/device_memory.hpp"
#include "runtime/exchange/bytes.hpp"

namespace commfuse::runtime {

/// One physical allocation, as its owner offers it to the peers.
struct MemoryPart {
  std::uint64_t bytes = 0;
  Blob handle;            ///< kLegacyIpc, kVmmFabric: travels in a message
  Descriptor descriptor;  ///< kVmmDescriptor: travels by Exchange::hand_over_descriptor
};
/// Of one rank. All ranks' descriptors are open at once before they are mapped, and a process may not have many.
inline constexpr std::size_t kMaxParts = 32;
/// All but the descriptors.
void write_parts(ByteWriter& writer, std::span<const MemoryPart> parts);
/// Throws Error(kInvalidInput).
[[nodiscard]] std::vector<MemoryPart> read_parts(ByteReader& reader);
[[nodiscard]] std::uint64_t total_bytes(std::span<const MemoryPart> parts) noexcept;

/// What `handle` needs to be mapped elsewhere. `kind` is one of the VMM kinds.
[[nodiscard]] MemoryPart export_part(MemoryKind kind, CUmemGenericAllocationHandle handle, std::uint64_t bytes);
/// The driver's name for a VMM kind.
[[nodiscard]] CUmemAllocationHandleType handle_type(MemoryKind kind) noexcept;

/// Addresses, with memory of cuMemCreate behind them or not. Move-only.
class MappedRange {
 public:
  MappedRange() = default;
  explicit MappedRange(std::size_t bytes);
  MappedRange(MappedRange&& other) noexcept
      : pointer_(std::exchange(other.pointer_, 0)),
        bytes_(std::exchange(other.bytes_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  MappedRange& operator=(MappedRange&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~MappedRange();

  /// Maps `bytes` of `handle` behind what is mapped already, for reading and writing by `device`. The mapping keeps the
  /// memory alive.
  void append(CUmemGenericAllocationHandle handle, CUdevice device, std::size_t bytes);
  /// The addresses stay reserved.
  void unmap() noexcept;

  [[nodiscard]] CUdeviceptr pointer() const noexcept { return pointer_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  CUdeviceptr pointer_ = 0;
  std::size_t bytes_ = 0;
  std::size_t mapped_ = 0;  ///< from the start
};

/// Memory of the current context's device, made in one of the kinds, with what peers need to map it. Move-only.
class OwnMemory {
 public:
  OwnMemory() = default;
  /// At least `bytes`. Throws Error(kOutOfMemory, kUnsupported, kDriver).
  OwnMemory(MemoryKind kind, CUdevice device, std::size_t bytes);

  [[nodiscard]] CUdeviceptr pointer() const noexcept { return range_.pointer() + buffer_.pointer(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<const MemoryPart> parts() const noexcept { return parts_; }
  /// Once all peers have what they need.
  void close_descriptors() { parts_.clear(); }

  /// With a repeated word; returns when done. All of it, or some whole words.
  void fill(std::uint32_t word) const { fill(word, 0, bytes_); }
  void fill(std::uint32_t word, std::uint64_t offset, std::uint64_t bytes) const;
  /// VMM kinds: gives the memory back and keeps the addresses. Peers must have closed their mappings for the memory to
  /// be free.
  void suspend() noexcept;
  /// New memory at the old addresses, to be offered anew. Throws as the constructor.
  void resume();
  /// To be called where peers may still have it mapped. Physical memory of cuMemCreate lives as long as any mapping;
  /// memory that was opened by IPC handle may not be freed before the last peer has closed it, so it is kept until the
  /// context goes. True if it had to be kept.
  bool leave_to_peers() noexcept {
    const bool kept = buffer_.pointer() != 0;
    buffer_.abandon();
    return kept;
  }
  /// The context has died. Memory of cuMemCreate does not belong to one.
  void abandon() noexcept { buffer_.abandon(); }

 private:
  void fill_range();

  MemoryKind kind_ = MemoryKind::kAuto;
  CUdevice device_ = 0;
  // Only one of the two holds memory.
  MappedRange range_;
  DeviceBuffer buffer_;
  std::size_t bytes_ = 0;
  std::vector<MemoryPart> parts_;
};

/// Another rank's memory in this rank's address space. Move-only.
class PeerMapping {
 public:
  PeerMapping() = default;
  /// `parts` come from the peer, descriptors included. Throws Error(kInvalidInput, kDriver, kOutOfMemory,
  /// kUnsupported).
  PeerMapping(MemoryKind kind, CUdevice device, std::span<const MemoryPart> parts);
  PeerMapping(PeerMapping&& other) noexcept
      : range_(std::move(other.range_)), opened_(std::exchange(other.opened_, 0)) {}
  PeerMapping& operator=(PeerMapping&& other) noexcept {
    std::swap(range_, other.range_);
    std::swap(opened_, other.opened_);
    return *this;
  }
  ~PeerMapping();

  [[nodiscard]] CUdeviceptr pointer() const noexcept { return range_.pointer() + opened_; }
  /// As OwnMemory::abandon.
  void abandon() noexcept { opened_ = 0; }
  /// VMM kinds: lets go of the peer's memory and keeps the addresses.
  void suspend() noexcept { range_.unmap(); }
  /// Maps the peer's new memory at the old addresses. Throws as the constructor.
  void resume(MemoryKind kind, CUdevice device, std::span<const MemoryPart> parts);

 private:
  MappedRange range_;
  CUdeviceptr opened_ = 0;  ///< by cuIpcOpenMemHandle
};

}  // namespace commfuse::runtime
