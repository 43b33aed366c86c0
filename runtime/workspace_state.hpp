// What an operation needs to know of a workspace to fill its parameter block.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "commfuse/workspace.hpp"
#include "device/params.cuh"
#include "runtime/registered_ranges.hpp"
#include "runtime/stop_sender.hpp"

namespace commfuse::runtime {

/// The memory of a rank that its peers map: three rotation buffers and the signals behind them.
[[nodiscard]] constexpr std::uint64_t shared_memory_bytes(std::uint64_t rotation_bytes) noexcept {
  return 3 * rotation_bytes + sizeof(device::PeerSignals);
}

/// Start of a rotation buffer: a whole number of L2 lines.
inline constexpr std::uint64_t kBufferAlignment = 256;
[[nodiscard]] constexpr std::uint64_t rounded_rotation_bytes(std::uint64_t bytes) noexcept {
  return ((bytes == 0 ? 1 : bytes) + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}
/// What an empty rotation buffer is full of.
inline constexpr std::uint32_t kEmptyWord = 0xffffffffU;

/// No call is ever prepared for it.
inline constexpr std::uint32_t kSuspendedGeneration = 0xffffffffU;

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
  /// The registered buffer that holds all of these bytes, or null. Allocates nothing, takes no lock: buffers may not be
  /// registered or released while launches of this workspace are being made.
  [[nodiscard]] const RegisteredRange* registered(const void* pointer, std::size_t bytes) const noexcept {
    return buffers_.holding(pointer, bytes);
  }
  [[nodiscard]] RegisteredRanges& buffers() noexcept { return buffers_; }
  /// Whether calls are announced before they are made.
  [[nodiscard]] bool is_checking() const noexcept { return checking_; }
  [[nodiscard]] std::uint32_t generation() const noexcept { return generation_; }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(timeout_ns_));
  }
  /// Its memory is not there at the moment.
  [[nodiscard]] bool is_suspended() const noexcept { return is_suspended_; }
  /// For calls of this workspace; empty if none was given or it was measured on another device.
  [[nodiscard]] const PlannerTable& planner_table() const noexcept { return planner_table_; }
  /// The code of the first failure, kOk as long as there is none, kStale while suspended; the cheap part of failure().
  [[nodiscard]] Code failure_code() const noexcept;

 protected:
  int rank_ = 0;
  int world_size_ = 1;
  std::uint64_t rotation_bytes_ = 0;
  std::uint64_t timeout_ns_ = 0;
  std::uint32_t generation_ = 0;
  std::atomic<bool> is_suspended_ = false;  ///< abort() reads it on any thread
  bool checking_ = false;
  DeviceCaps caps_;
  PlannerTable planner_table_;
  std::uint64_t peer_buffer_[device::kMaxWorldSize] = {};
  device::Control* control_ = nullptr;      ///< device memory
  device::HostMailbox* mailbox_ = nullptr;  ///< pinned memory, the host's address
  device::HostMailbox* device_mailbox_ = nullptr;

  /// The context has died.
  void abandon_stop_sender() noexcept {
    if (stop_sender_ != nullptr) stop_sender_->abandon();
  }
  /// To be called when the rank is known, with the context current.
  void make_stop_sender() {
    constexpr auto kStatus = static_cast<std::uint32_t>(device::DeviceStatus::kPeerAborted);
    stop_sender_ = std::make_unique<StopSender>(kStatus << device::kStopRankBits | static_cast<std::uint32_t>(rank_));
  }

 private:
  RegisteredRanges buffers_;
  std::unique_ptr<StopSender> stop_sender_;
};

}  // namespace commfuse::runtime
