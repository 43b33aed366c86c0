// The registered buffers of a workspace, as launches look them up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/params.cuh"

namespace commfuse::runtime {

/// One registered buffer, as this rank's kernels reach it.
struct RegisteredRange {
  std::uintptr_t base = 0;  ///< of this rank's memory
  std::size_t bytes = 0;
  std::uint64_t id = 0;                                           ///< of the registration: the same on all ranks
  std::array<std::uintptr_t, device::kMaxWorldSize> peer_base{};  ///< by rank; the own one is `base`
};

/// Throws Error(kInvalidArgument) for a buffer that no call could use.
void require_registrable(std::uintptr_t pointer, std::uint64_t bytes);

/// Ranges without overlap. Looking up allocates nothing and takes no lock: nothing may be added or removed meanwhile.
class RegisteredRanges {
 public:
  /// The one that holds all of these bytes, or null.
  [[nodiscard]] const RegisteredRange* holding(const void* pointer, std::size_t bytes) const noexcept;
  /// One that shares a byte with these, or null.
  [[nodiscard]] const RegisteredRange* overlapping(std::uintptr_t base, std::size_t bytes) const noexcept;
  /// Must not overlap another.
  void add(const RegisteredRange& range);
  void remove(std::uint64_t id) noexcept;

 private:
  std::vector<RegisteredRange> ranges_;  ///< ascending
};

}  // namespace commfuse::runtime
