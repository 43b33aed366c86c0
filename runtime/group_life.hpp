// What becomes of the rotation buffers of a ProcessGroup after it was made.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "runtime/group_steps.hpp"
#include "runtime/process_workspace.hpp"

namespace commfuse::runtime {

/// One rank's side. All members are collective and throw what ProcessGroup's functions of the same names do.
class GroupLife {
 public:
  GroupLife(Exchange& exchange, ProcessWorkspace& workspace, MemoryKind kind, CUdevice device,
            const WorkspaceOptions& options);

  void reset();
  void grow(std::uint64_t rotation_bytes);
  void suspend();
  void resume();

 private:
  /// Throws ExchangeError(kMismatch) where the ranks do not all want this.
  [[nodiscard]] GroupSteps agree_to(const std::string& purpose);
  void require_awake(const GroupSteps& steps) const;
  /// Closes the mappings; when nobody has any, gives back what is ours. Addresses stay reserved where the kind can.
  void let_go(GroupSteps& steps);

  Exchange& exchange_;
  ProcessWorkspace& workspace_;
  MemoryKind kind_;
  CUdevice device_;
  Timeout timeout_;
  bool self_test_;
};

}  // namespace commfuse::runtime
