// One rank's workspace in a process of its own.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

#include "commfuse/exchange.hpp"
#include "runtime/driver.hpp"
#include "runtime/memory_sharing.hpp"
#include "runtime/planner_table.hpp"
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
    checking_ = options.checking;
    caps_ = caps;
    CUdevice device = 0;
    COMMFUSE_DRIVER(cuCtxGetDevice(&device));
    planner_table_ = table_for_device(options.planner_table, device, caps);
    control_memory_.fill(0);
    COMMFUSE_DRIVER(cuCtxSynchronize());
    control_ = control_memory_.as<device::Control>();
    mailbox_ = static_cast<device::HostMailbox*>(mailbox_memory_.host());
    device_mailbox_ = reinterpret_cast<device::HostMailbox*>(mailbox_memory_.device());
    make_stop_sender();
  }

  /// Takes memory for rotation buffers of that size, and gives back what it had.
  SharedMemory take(SharedMemory memory, std::uint64_t rotation_bytes) {
    std::swap(memory_, memory);
    rotation_bytes_ = rotation_bytes;
    find_peers();
    return memory;
  }
  [[nodiscard]] SharedMemory& memory() noexcept { return memory_; }
  /// To be called when addresses may have changed.
  void find_peers() noexcept {
    for (int rank = 0; rank < world_size_; ++rank) peer_buffer_[rank] = memory_.pointer(rank, rank_);
  }
  /// Starts over at epoch 0, without a failure; calls are prepared for `generation` from now on. No call may be under
  /// way, and the rotation buffers must be empty.
  void restart(std::uint32_t generation) {
    device::Control control{};
    control.generation = generation;
    control_memory_.upload(&control, sizeof(control));
    COMMFUSE_DRIVER(cuCtxSynchronize());
    std::memset(static_cast<void*>(mailbox_), 0, sizeof(*mailbox_));
    generation_ = generation;
  }
  /// What calls must have been prepared for so that the device does not refuse them.
  void tell_generation(std::uint32_t generation) {
    const CUdeviceptr word = control_memory_.pointer() + offsetof(device::Control, generation);
    COMMFUSE_DRIVER(cuMemcpyHtoD(word, &generation, sizeof(generation)));
    COMMFUSE_DRIVER(cuCtxSynchronize());
  }
  void set_suspended(bool is_suspended) noexcept { is_suspended_ = is_suspended; }
  void close_mappings() noexcept { memory_.peers.clear(); }
  /// See OwnMemory::leave_to_peers.
  bool leave_memory_to_peers() noexcept { return memory_.own.leave_to_peers(); }
  /// The context has died and its memory with it: nothing is to be given back.
  void abandon() noexcept {
    memory_.abandon();
    buffers().abandon();
    control_memory_.abandon();
    mailbox_memory_.abandon();
    abandon_stop_sender();
  }

 private:
  DeviceBuffer control_memory_;
  PinnedBuffer mailbox_memory_;
  SharedMemory memory_;
};

}  // namespace commfuse::runtime
