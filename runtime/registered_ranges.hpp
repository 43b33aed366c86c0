// The registered buffers of a workspace, as launches look them up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/params.cuh"
#include "runtime/device_memory.hpp"

namespace commfuse::runtime {

/// One registered buffer, as this rank's kernels reach it.
struct RegisteredRange {
  std::uintptr_t base = 0;  ///< of this rank's memory
  std::size_t bytes = 0;
  std::uint64_t id = 0;                                           ///< of the registration: the same on all ranks
  std::array<std::uintptr_t, device::kMaxWorldSize> peer_base{};  ///< by rank; the own one is `base`
  /// In device memory, by rank: peer_base - base, as kernels read it (AllReduceParams::peer_offset). Set by add().
  const device::u64* peer_offset = nullptr;
};

/// Throws Error(kInvalidArgument) for a buffer that no call could use.
void require_registrable(std::uintptr_t pointer, std::uint64_t bytes);

/// What kernels read of it, for RegisteredRange::peer_offset. Throws Error(kOutOfMemory, kDriver).
[[nodiscard]] DeviceBuffer peer_offsets(const RegisteredRange& range);

/// Ranges without overlap. Looking up allocates nothing and takes no lock: nothing may be added or removed meanwhile.
class RegisteredRanges {
 public:
  /// The one that holds all of these bytes, or null.
  [[nodiscard]] const RegisteredRange* holding(const void* pointer, std::size_t bytes) const noexcept;
  /// One that shares a byte with these, or null.
  [[nodiscard]] const RegisteredRange* overlapping(std::uintptr_t base, std::size_t bytes) const noexcept;
  /// Must not overlap another. `offsets` are those of peer_offsets(range).
  void add(RegisteredRange range, DeviceBuffer offsets);
  void remove(std::uint64_t id) noexcept;
  /// The context has died, and what add() put into its memory.
  void abandon() noexcept;

 private:
  struct Entry {
    RegisteredRange range;
    DeviceBuffer peer_offset;
  };
  std::vector<Entry> entries_;  ///< ascending
};

}  // namespace commfuse::runtime
