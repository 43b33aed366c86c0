// What an operation needs to know of a workspace to fill its parameter block.
#pragma once

#include <atomic>
#include <cstdint>

#include "commfuse/workspace.hpp"
#include "device/params.cuh"

namespace commfuse::runtime {

/// The memory of a rank that its peers map: three rotation buffers and the signals behind them.
[[nodiscard]] constexpr std::uint64_t shared_memory_bytes(std::uint64_t rotation_bytes) noexcept {
  return 3 * rotation_bytes + sizeof(device::PeerSignals);
}

/// The common part of every workspace: addresses and the mailbox. How the memory came to be is the derived class's
/// affair.
class WorkspaceState : public Workspace {
 public:
  [[nodiscard]] int rank() const noexcept final { return rank_; }
  [[nodiscard]] int world_size() const noexcept final { return world_size_; }
  [[nodiscard]] std::uint64_t rotation_bytes() const noexcept final { return rotation_bytes_; }
  [[nodiscard]] const DeviceCaps& caps() const noexcept final { return caps_; }
  [[nodiscard]] Failure failure() const noexcept final;
  void abort() noexcept final;

  /// Fills everything in `params` that does not depend on the call.
  void fill(device::AllReduceParams& params) const noexcept;
  /// The code of the first failure, kOk as long as there is none; the cheap part of failure().
  [[nodiscard]] Code failure_code() const noexcept;

 protected:
  int rank_ = 0;
  int world_size_ = 1;
  std::uint64_t rotation_bytes_ = 0;
  std::uint64_t timeout_ns_ = 0;
  std::uint32_t generation_ = 0;
  DeviceCaps caps_;
  std::uint64_t peer_buffer_[device::kMaxWorldSize] = {};
  device::Control* control_ = nullptr;      ///< device memory
  device::HostMailbox* mailbox_ = nullptr;  ///< pinned memory, the host's address
  device::HostMailbox* device_mailbox_ = nullptr;
};

}  // namespace commfuse::runtime
