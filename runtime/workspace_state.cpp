#include "runtime/workspace_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "runtime/call_header.hpp"
#include "runtime/pattern.hpp"

namespace commfuse {
namespace {

/// "all_reduce", "reduce_scatter residual_rms_norm".
std::string called(const Failure& failure) {
  const std::string_view op = to_string(failure.op);
  return op == failure.operation ? std::string(op) : fmt::format("{} {}", op, failure.operation);
}

}  // namespace

std::string Failure::text() const {
  if (code == Code::kOk) return fmt::format("rank {}: no failure", rank);
  switch (code) {
    case Code::kTimeout:
      if (before_call) {
        return fmt::format(
            "rank {}: timed out in call {} ({}) waiting for rank {} to announce its call; that rank died, is late, or "
            "makes fewer calls",
            rank, epoch, called(*this), awaited_rank);
      }
      return fmt::format(
          "rank {}: timed out in call {} ({}) waiting for rank {}'s data of token {}; that rank died, is late, or made "
          "another call",
          rank, epoch, called(*this), awaited_rank, token);
    case Code::kAborted:
      if (origin_rank < 0) return fmt::format("rank {}: aborted", rank);
      if (origin_rank != rank) {
        return fmt::format("rank {}: stopped in call {} ({}) because rank {} was aborted", rank, epoch, called(*this),
                           origin_rank);
      }
      return fmt::format("rank {}: aborted in call {} ({}) while waiting for rank {}", rank, epoch, called(*this),
                         awaited_rank);
    case Code::kMismatch:
      return fmt::format("rank {}: call {} ({}) is not the one that rank {} makes: {} is {} here and {} there", rank,
                         epoch, called(*this), awaited_rank, field, runtime::describe_call_word(field, own_value),
                         runtime::describe_call_word(field, other_value));
    case Code::kBusy:
      return fmt::format(
          "rank {}: stopped in call {} ({}) because rank {} began a call while another of its calls was under way; "
          "calls of one workspace must follow each other on one stream or be ordered by events",
          rank, epoch, called(*this), origin_rank);
    case Code::kStale:
      if (operation.empty()) return fmt::format("rank {}: the workspace is suspended", rank);
      return fmt::format("rank {}: call {} ({}) was prepared for an earlier generation of the workspace", rank, epoch,
                         called(*this));
    default:
      return fmt::format("rank {}: {} in call {} ({}), rank {}", rank, to_string(code), epoch, called(*this),
                         awaited_rank);
  }
}

std::uint64_t required_rotation_bytes(const KernelSpec& spec, std::int64_t tokens) noexcept {
  constexpr std::uint64_t kVectorBytes = 16;
  constexpr std::uint64_t kGroup = 32;
  const std::uint64_t row =
      static_cast<std::uint64_t>(spec.hidden_size) * static_cast<std::uint64_t>(size_of(spec.dtype));
  const auto peers = static_cast<std::uint64_t>(spec.world_size - 1);
  const auto rows = static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 0));
  const std::uint64_t longest = (rows + peers) / static_cast<std::uint64_t>(spec.world_size);
  if (spec.op == Op::kReduceScatter) return peers * longest * row;
  if (spec.op == Op::kAllGather) {
    // Groups of 32 vectors with a header each (all_gather.cuh): of rows where there is a norm, else of the whole run.
    const std::uint64_t vectors = row / kVectorBytes;
    const bool of_rows = runtime::needs_whole_row(spec.pattern);
    const std::uint64_t groups =
        of_rows ? longest * ((vectors + kGroup - 1) / kGroup) : (longest * vectors + kGroup - 1) / kGroup;
    return peers * groups * (kGroup + 1) * kVectorBytes;
  }
  if (spec.algorithm == Algorithm::kOneShot) return peers * rows * row;
  // Contributions to our rows, and finished rows with their facts (all_reduce_two_shot.cuh, finished_rows.cuh); direct
  // kernels need as much where tensors are not registered.
  const std::uint64_t groups = (row / kVectorBytes + kGroup - 1) / kGroup;
  const std::uint64_t facts = runtime::needs_whole_row(spec.pattern) ? groups * kVectorBytes : 0;
  return peers * longest * (2 * row + facts);
}

std::uint64_t required_rotation_bytes(const Deployment& deployment) {
  // The architecture does not change sizes; any will do where the file names none.
  std::uint64_t bytes = 0;
  for (const KernelSpec& spec :
       deployment.kernels(deployment.arch.empty() ? std::vector<std::string>{"sm_90a"} : deployment.arch)) {
    bytes = std::max(bytes, required_rotation_bytes(spec, deployment.max_tokens));
  }
  return bytes;
}

namespace runtime {
namespace {

/// A word that the device writes while the host reads.
std::uint32_t read(const device::u32& word) noexcept {
  return std::atomic_ref<device::u32>(const_cast<device::u32&>(word)).load(std::memory_order_acquire);
}

Code code_of(std::uint32_t status) noexcept {
  switch (static_cast<device::DeviceStatus>(status)) {
    case device::DeviceStatus::kOk:
      return Code::kOk;
    case device::DeviceStatus::kTimeout:
      return Code::kTimeout;
    case device::DeviceStatus::kAborted:
    case device::DeviceStatus::kPeerAborted:
      return Code::kAborted;
    case device::DeviceStatus::kStale:
      return Code::kStale;
    case device::DeviceStatus::kMismatch:
      return Code::kMismatch;
    case device::DeviceStatus::kBusy:
    case device::DeviceStatus::kPeerBusy:
      return Code::kBusy;
  }
  return Code::kInternal;
}

}  // namespace

Code WorkspaceState::failure_code() const noexcept {
  if (is_suspended_) return Code::kStale;
  const Code code = code_of(read(mailbox_->status));
  return code == Code::kOk && read(mailbox_->abort) != 0 ? Code::kAborted : code;
}

Failure WorkspaceState::failure() const noexcept {
  Failure failure;
  failure.rank = rank_;
  failure.code = failure_code();
  const std::uint32_t status = read(mailbox_->status);
  // Aborted before any kernel noticed: there is no call to describe.
  if (status == 0) return failure;
  failure.epoch = read(mailbox_->epoch_low) | std::uint64_t{read(mailbox_->epoch_high)} << 32;
  failure.token = read(mailbox_->token);
  const std::uint32_t operation = read(mailbox_->operation);
  const std::uint32_t called = operation & ~device::kAnnouncement;
  failure.op = runtime::op_of(called);
  failure.operation = to_string(runtime::pattern_of(called));
  failure.before_call = (operation & device::kAnnouncement) != 0;
  const auto other = static_cast<int>(read(mailbox_->awaited_rank));
  switch (static_cast<device::DeviceStatus>(status)) {
    case device::DeviceStatus::kPeerAborted:
    case device::DeviceStatus::kPeerBusy:
      failure.origin_rank = other;
      return failure;
    case device::DeviceStatus::kBusy:
      failure.origin_rank = rank_;
      return failure;
    case device::DeviceStatus::kAborted:
      failure.origin_rank = rank_;
      break;
    case device::DeviceStatus::kMismatch:
      failure.field = call_word_name(read(mailbox_->field));
      failure.own_value = read(mailbox_->own_value);
      failure.other_value = read(mailbox_->other_value);
      break;
    default:
      break;
  }
  failure.awaited_rank = other;
  return failure;
}

void WorkspaceState::abort() noexcept {
  if (std::atomic_ref<device::u32>(mailbox_->abort).exchange(1, std::memory_order_acq_rel) != 0) return;
  // Nobody waits, and there is no memory to write to.
  if (is_suspended_) return;
  std::uint64_t addresses[device::kMaxWorldSize] = {};
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || peer_buffer_[peer] == 0) continue;
    addresses[peer] = peer_buffer_[peer] + 3 * rotation_bytes_ + offsetof(device::PeerSignals, stop);
  }
  if (stop_sender_ != nullptr) stop_sender_->send(addresses);
}

void WorkspaceState::fill(device::AllReduceParams& params) const noexcept {
  std::copy(std::begin(peer_buffer_), std::end(peer_buffer_), params.peer_buffer);
  params.rotation_bytes = rotation_bytes_;
  params.control = control_;
  params.mailbox = device_mailbox_;
  params.timeout_ns = timeout_ns_;
  params.rank = static_cast<device::u32>(rank_);
  params.generation = generation_;
}

}  // namespace runtime
}  // namespace commfuse
