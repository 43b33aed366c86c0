// Making a group, on each rank; every line is one collective step that all ranks take together (docs/workspace.md):
//
//   agree on the request -> devices, hosts -> reachable? -> for each kind until one works everywhere: MemorySharing
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/group_plan.hpp"
#include "runtime/group_steps.hpp"
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
  [[nodiscard]] CUdevice device() const noexcept { return device_; }
  /// Known after share_memory.
  [[nodiscard]] MemoryKind kind() const noexcept { return attempts_.back().kind; }
  [[nodiscard]] std::string reason() const { return reason_of(attempts_); }

 private:
  [[nodiscard]] RankDevice look_at_own_device();
  void require_reachable(int rank) const;

  Exchange& exchange_;
  GroupSteps steps_;
  WorkspaceOptions options_;
  MemoryKind asked_;
  std::uint64_t rotation_bytes_ = 0;
  CUcontext context_ = nullptr;
  CUdevice device_ = 0;
  std::vector<RankDevice> devices_;
  std::vector<MemoryKind> kinds_;
  DeviceCaps caps_;
  std::vector<Attempt> attempts_;
};

}  // namespace commfuse::runtime
