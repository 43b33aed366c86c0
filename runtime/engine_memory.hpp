// Memory that the engine allocated itself: what it is, and whether other processes can map it.
#pragma once

#include <cuda.h>

#include <compare>
#include <cstdint>
#include <vector>

#include "runtime/peer_memory.hpp"

namespace commfuse::runtime {

/// The allocation, or the allocations that lie one behind the other, in which a buffer lies.
struct EngineMemory {
  /// Equal for two buffers of the same allocation, and for nothing that comes to its address after it was freed.
  struct Identity {
    std::uintptr_t base = 0;
    std::uint64_t bytes = 0;
    std::uint64_t first = 0;  ///< the driver's number of the first allocation, of the last one
    std::uint64_t last = 0;
    friend auto operator<=>(const Identity&, const Identity&) = default;
  };
  Identity identity;
  MemoryKind kind = MemoryKind::kAuto;  ///< by which it can be shared

  /// Throws Error(kInvalidArgument, kUnsupported), saying what the memory is and what to do, where `device` does not
  /// hold it or it cannot be shared: by fabric handle if `one_host` is false.
  [[nodiscard]] static EngineMemory look_at(CUdevice device, std::uintptr_t pointer, std::uint64_t bytes,
                                            bool one_host);
  /// What peers need to map all of it. Throws Error(kDriver, kUnsupported).
  [[nodiscard]] std::vector<MemoryPart> offer() const;
};

}  // namespace commfuse::runtime
