// Making a group, on each rank; every line is one collective step that all ranks take together (docs/workspace.md):
//
//   agree on the request -> one host? -> devices -> reachable? -> for each kind until one works everywhere:
//     allocate, fill, publish -> pass descriptors -> map -> write a word to each peer -> read own words, fill again
//
// What fails on one rank is told to all before anybody acts on it.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/group_plan.hpp"
#include "runtime/process_workspace.hpp"

namespace commfuse::runtime {

/// The steps on one rank. To be called in this order, once each; all of them throw what ProcessGroup::create does.
class GroupCreation {
 public:
  GroupCreation(Exchange& exchange, const WorkspaceOptions& options, MemoryKind asked);

  void agree_on_request();
  void look_at_devices();
  [[nodiscard]] std::unique_ptr<ProcessWorkspace> share_memory();

  /// Known after look_at_devices.
  [[nodiscard]] CUcontext context() const noexcept { return context_; }
  /// Known after share_memory.
  [[nodiscard]] MemoryKind kind() const noexcept { return attempts_.back().kind; }
  [[nodiscard]] std::string reason() const { return reason_of(attempts_); }

 private:
  struct StepResult {
    std::vector<Outcome> ranks;
    std::vector<Blob> payloads;
    [[nodiscard]] bool is_ok() const noexcept { return all_ok(ranks); }
  };
  /// What a rank tells of its memory.
  struct Publication {
    std::uint64_t bytes = 0;
    std::uint64_t nonce = 0;
    Blob handle;

    [[nodiscard]] Blob write() const;
    [[nodiscard]] static Publication read(std::span<const std::byte> blob);
  };

  /// Does this rank's part, and tells the others how it ended. No rank gets beyond it before all have done theirs.
  template <typename Part>
  StepResult step(const Part& part);
  /// A step without which there is no group. Everybody's payload.
  template <typename Part>
  std::vector<Blob> require(const Part& part);

  void require_reachable(int rank) const;
  /// Maps peers into `workspace`, or leaves nothing behind.
  Attempt attempt(MemoryKind kind, ProcessWorkspace& workspace);
  [[nodiscard]] std::vector<Descriptor> pass_descriptors(const OwnMemory& own);
  void map_peers(MemoryKind kind, const OwnMemory& own, const std::vector<Publication>& published,
                 std::vector<PeerMapping>& peers);
  /// What may be in the way between this rank and another, as far as can be told.
  [[nodiscard]] std::string obstacle(int rank) const;
  void write_words(const std::vector<Publication>& published, const std::vector<PeerMapping>& peers) const;
  void check_words(const OwnMemory& own, std::uint64_t nonce) const;
  /// Where a sender's word stands in a rank's memory.
  [[nodiscard]] std::uint64_t slot(int sender) const noexcept;
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

  Exchange& exchange_;
  WorkspaceOptions options_;
  MemoryKind asked_;
  int world_size_;
  std::uint64_t rotation_bytes_ = 0;
  CUcontext context_ = nullptr;
  CUdevice device_ = 0;
  std::vector<RankDevice> devices_;
  DeviceCaps caps_;
  std::vector<Attempt> attempts_;
};

}  // namespace commfuse::runtime
