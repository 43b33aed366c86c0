// One rank's workspace in a process of its own.
#pragma once

#include <utility>

#include "commfuse/exchange.hpp"
#include "runtime/driver.hpp"
#include "runtime/memory_sharing.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse::runtime {

/// The control block and the mailbox; the rotation buffers are given to it when they are shared.
class ProcessWorkspace final : public WorkspaceState {
 public:
  ProcessWorkspace(const Exchange& exchange, const WorkspaceOptions& options, std::uint64_t rotation_bytes,
                   const DeviceCaps& caps)
      : control_memory_(sizeof(device::Control)), mailbox_memory_(sizeof(device::HostMailbox)) {
    rank_ = exchange.rank();
    world_size_ = exchange.size();
    rotation_bytes_ = rotation_bytes;
    timeout_ns_ = static_cast<std::uint64_t>(options.timeout.count());
    caps_ = caps;
    control_memory_.fill(0);
    COMMFUSE_DRIVER(cuCtxSynchronize());
    control_ = control_memory_.as<device::Control>();
    mailbox_ = static_cast<device::HostMailbox*>(mailbox_memory_.host());
    device_mailbox_ = reinterpret_cast<device::HostMailbox*>(mailbox_memory_.device());
  }

  void take(SharedMemory memory) {
    memory_ = std::move(memory);
    for (int rank = 0; rank < world_size_; ++rank) peer_buffer_[rank] = memory_.pointer(rank, rank_);
  }
  void close_mappings() noexcept { memory_.peers.clear(); }
  /// See OwnMemory::leave_to_peers.
  bool leave_memory_to_peers() noexcept { return memory_.own.leave_to_peers(); }

 private:
  DeviceBuffer control_memory_;
  PinnedBuffer mailbox_memory_;
  SharedMemory memory_;
};

}  // namespace commfuse::runtime
