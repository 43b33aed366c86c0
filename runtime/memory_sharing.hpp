// Memory on every rank that every other rank has mapped and has proved to reach (docs/workspace.md).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "runtime/group_steps.hpp"
#include "runtime/peer_memory.hpp"

namespace commfuse::runtime {

/// This rank's side of it. The mappings close before the own memory goes.
struct SharedMemory {
  OwnMemory own;
  std::vector<PeerMapping> peers;  ///< by rank; the own one is empty

  /// See ProcessWorkspace::abandon.
  void abandon() noexcept {
    own.abandon();
    for (PeerMapping& peer : peers) peer.abandon();
  }
  /// Addresses of all ranks' memory, by rank.
  [[nodiscard]] CUdeviceptr pointer(int rank, int own_rank) const noexcept {
    return rank == own_rank ? own.pointer() : peers[static_cast<std::size_t>(rank)].pointer();
  }
};

/// What one rank tells the others of memory that it offers.
struct MemoryOffer {
  MemoryKind kind = MemoryKind::kAuto;
  std::vector<MemoryPart> parts;
};

/// Collective: fills in the descriptors of all `offers` (by rank; ours are passed on). Every rank must have the same
/// view of kinds and numbers of parts.
void pass_descriptors(GroupSteps& steps, std::span<const MemoryPart> own, std::span<MemoryOffer> offers);
/// An error of mapping the memory of `rank`, with that said, and what may be in the way as far as can be told.
[[nodiscard]] Error mapping_error(const Exchange& exchange, int rank, const Error& error);

/// The steps of sharing `bytes` on every rank, filled with `word`. Collective.
class MemorySharing {
 public:
  MemorySharing(GroupSteps& steps, CUdevice device, std::uint64_t bytes, std::uint32_t word, bool self_test);

  /// How it ended on each rank. Where all is well `memory` is shared; it may come suspended, and then keeps its
  /// addresses. Otherwise it is empty or suspended as it came, and nobody has anything of it mapped.
  [[nodiscard]] std::vector<Outcome> attempt(MemoryKind kind, SharedMemory& memory);

 private:
  struct Publication;
  void map_peers(MemoryKind kind, SharedMemory& memory, std::vector<Publication>& published);
  void write_words(const std::vector<Publication>& published, const SharedMemory& memory) const;
  /// Those that the others wrote here, and ours there.
  void check_words(const std::vector<Publication>& published, const SharedMemory& memory) const;
  /// Where a sender's word stands in a rank's memory.
  [[nodiscard]] std::uint64_t slot(int sender) const noexcept;

  GroupSteps& steps_;
  CUdevice device_;
  std::uint64_t bytes_;
  std::uint32_t word_;
  bool self_test_;
};

}  // namespace commfuse::runtime
