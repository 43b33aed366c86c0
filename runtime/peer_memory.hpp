// One allocation that other processes map, and such a mapping.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>
#include <utility>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"
#include "runtime/device_memory.hpp"

namespace commfuse::runtime {

/// Addresses with memory of cuMemCreate behind them. Move-only.
class MappedRange {
 public:
  MappedRange() = default;
  /// Maps all `bytes` of `handle` for reading and writing by `device`. The mapping keeps the memory alive.
  MappedRange(CUmemGenericAllocationHandle handle, CUdevice device, std::size_t bytes);
  MappedRange(MappedRange&& other) noexcept
      : pointer_(std::exchange(other.pointer_, 0)),
        bytes_(std::exchange(other.bytes_, 0)),
        is_mapped_(std::exchange(other.is_mapped_, false)) {}
  MappedRange& operator=(MappedRange&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    std::swap(is_mapped_, other.is_mapped_);
    return *this;
  }
  ~MappedRange();

  [[nodiscard]] CUdeviceptr pointer() const noexcept { return pointer_; }

 private:
  CUdeviceptr pointer_ = 0;
  std::size_t bytes_ = 0;
  bool is_mapped_ = false;
};

/// Memory of the current context's device, made in one of the kinds, with what peers need to map it. Move-only.
class OwnMemory {
 public:
  OwnMemory() = default;
  /// At least `bytes`. Throws Error(kOutOfMemory, kUnsupported, kDriver).
  OwnMemory(MemoryKind kind, CUdevice device, std::size_t bytes);

  [[nodiscard]] CUdeviceptr pointer() const noexcept { return range_.pointer() + buffer_.pointer(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// kLegacyIpc: what a peer opens; empty otherwise.
  [[nodiscard]] std::span<const std::byte> handle() const noexcept { return handle_; }
  /// kVmmDescriptor: to be passed to each peer; -1 otherwise.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  /// Once all peers have it.
  void close_descriptor() { descriptor_ = Descriptor(); }
  /// To be called where peers may still have it mapped. Physical memory behind descriptors lives as long as any
  /// mapping; memory that was opened by IPC handle may not be freed before the last peer has closed it, so it is kept
  /// until the context goes. True if it had to be kept.
  bool leave_to_peers() noexcept {
    const bool kept = buffer_.pointer() != 0;
    buffer_.abandon();
    return kept;
  }

 private:
  // Only one of the two holds memory.
  MappedRange range_;
  DeviceBuffer buffer_;
  std::size_t bytes_ = 0;
  Blob handle_;
  Descriptor descriptor_;
};

/// Another rank's OwnMemory in this rank's address space. Move-only.
class PeerMapping {
 public:
  PeerMapping() = default;
  /// `handle` or `descriptor`, as the kind has it, and `bytes` come from the peer. Throws Error(kInvalidInput, kDriver,
  /// kOutOfMemory, kUnsupported).
  PeerMapping(MemoryKind kind, CUdevice device, std::size_t bytes, std::span<const std::byte> handle, int descriptor);
  PeerMapping(PeerMapping&& other) noexcept
      : range_(std::move(other.range_)), opened_(std::exchange(other.opened_, 0)) {}
  PeerMapping& operator=(PeerMapping&& other) noexcept {
    std::swap(range_, other.range_);
    std::swap(opened_, other.opened_);
    return *this;
  }
  ~PeerMapping();

  [[nodiscard]] CUdeviceptr pointer() const noexcept { return range_.pointer() + opened_; }

 private:
  MappedRange range_;
  CUdeviceptr opened_ = 0;  ///< by cuIpcOpenMemHandle
};

}  // namespace commfuse::runtime
