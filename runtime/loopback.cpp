#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "commfuse/workspace.hpp"
#include "runtime/device_memory.hpp"
#include "runtime/driver.hpp"
#include "runtime/planner_table.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

class LoopbackWorkspace final : public runtime::WorkspaceState {
 public:
  LoopbackWorkspace(int rank, int world_size, const WorkspaceOptions& options, const DeviceCaps& caps)
      : control_memory_(sizeof(device::Control)), mailbox_memory_(sizeof(device::HostMailbox)) {
    rank_ = rank;
    world_size_ = world_size;
    rotation_bytes_ = runtime::rounded_rotation_bytes(options.rotation_bytes);
    timeout_ns_ = static_cast<std::uint64_t>(options.timeout.count());
    checking_ = options.checking;
    caps_ = caps;
    CUdevice device = 0;
    COMMFUSE_DRIVER(cuCtxGetDevice(&device));
    planner_table_ = runtime::table_for_device(options.planner_table, device, caps);
    buffers_ = runtime::DeviceBuffer(runtime::shared_memory_bytes(rotation_bytes_));
    control_ = control_memory_.as<device::Control>();
    mailbox_ = static_cast<device::HostMailbox*>(mailbox_memory_.host());
    device_mailbox_ = reinterpret_cast<device::HostMailbox*>(mailbox_memory_.device());
    make_stop_sender();
    reset();
  }

  /// With no call under way.
  void reset() {
    buffers_.fill(runtime::kEmptyWord);
    device::Control control{};
    control.generation = generation_;
    control_memory_.upload(&control, sizeof(control));
    COMMFUSE_DRIVER(cuCtxSynchronize());
    std::memset(static_cast<void*>(mailbox_), 0, sizeof(*mailbox_));
  }
  /// What becomes of the old buffers is the caller's affair; the peers have to be met again.
  runtime::DeviceBuffer exchange_buffers(runtime::DeviceBuffer larger, std::uint64_t rotation_bytes) {
    std::swap(buffers_, larger);
    rotation_bytes_ = rotation_bytes;
    ++generation_;
    return larger;
  }
  void meet(const LoopbackWorkspace& peer) { peer_buffer_[peer.rank_] = peer.buffers_.pointer(); }

 private:
  runtime::DeviceBuffer buffers_;
  runtime::DeviceBuffer control_memory_;
  runtime::PinnedBuffer mailbox_memory_;
};

}  // namespace

struct LoopbackGroup::State {
  std::vector<std::unique_ptr<LoopbackWorkspace>> ranks;
  std::map<std::uint64_t, std::vector<runtime::DeviceBuffer>> buffers;  ///< by id; empty for the caller's memory
  std::uint64_t next_id = 1;
};

LoopbackGroup::LoopbackGroup(int world_size, const WorkspaceOptions& options) : state_(std::make_unique<State>()) {
  if (world_size < 1 || world_size > kMaxWorldSize) {
    throw Error(Code::kInvalidArgument, "cannot make a loopback group", fmt::format("world_size is {}", world_size),
                fmt::format("it must be 1 to {}", kMaxWorldSize));
  }
  if (options.timeout.count() <= 0) {
    throw Error(Code::kInvalidArgument, "cannot make a loopback group", "the timeout is not positive",
                "every wait on the GPU is bounded; give the longest time that a peer may be late");
  }
  CUdevice device = 0;
  COMMFUSE_DRIVER(cuCtxGetDevice(&device));
  DeviceCaps caps;
  COMMFUSE_DRIVER(cuDeviceGetAttribute(&caps.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  caps.ranks_on_device = world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    state_->ranks.push_back(std::make_unique<LoopbackWorkspace>(rank, world_size, options, caps));
  }
  for (auto& rank : state_->ranks) {
    for (const auto& peer : state_->ranks) rank->meet(*peer);
  }
}

LoopbackGroup::~LoopbackGroup() = default;
LoopbackGroup::LoopbackGroup(LoopbackGroup&&) noexcept = default;
LoopbackGroup& LoopbackGroup::operator=(LoopbackGroup&&) noexcept = default;

int LoopbackGroup::world_size() const noexcept { return static_cast<int>(state_->ranks.size()); }
Workspace& LoopbackGroup::workspace(int rank) { return *state_->ranks.at(static_cast<std::size_t>(rank)); }

void LoopbackGroup::reset() {
  COMMFUSE_DRIVER(cuCtxSynchronize());
  for (auto& rank : state_->ranks) rank->reset();
}

void LoopbackGroup::grow(std::uint64_t rotation_bytes) {
  rotation_bytes = runtime::rounded_rotation_bytes(rotation_bytes);
  if (rotation_bytes <= workspace(0).rotation_bytes()) return;
  std::vector<runtime::DeviceBuffer> buffers;
  buffers.reserve(state_->ranks.size());
  for (int rank = 0; rank < world_size(); ++rank) buffers.emplace_back(runtime::shared_memory_bytes(rotation_bytes));
  COMMFUSE_DRIVER(cuCtxSynchronize());
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    buffers[rank] = state_->ranks[rank]->exchange_buffers(std::move(buffers[rank]), rotation_bytes);
    state_->ranks[rank]->reset();
  }
  for (auto& rank : state_->ranks) {
    for (const auto& peer : state_->ranks) rank->meet(*peer);
  }
}

RegisteredBuffer LoopbackGroup::allocate(std::uint64_t bytes) {
  if (bytes == 0) throw Error(Code::kInvalidArgument, "cannot allocate a buffer", "it has no bytes");
  std::vector<runtime::DeviceBuffer> memory;
  std::vector<void*> pointers;
  for (int rank = 0; rank < world_size(); ++rank) {
    // Whole words, to be filled.
    memory.emplace_back((bytes + 3) / 4 * 4);
    memory.back().fill(0);
    pointers.push_back(memory.back().as());
  }
  RegisteredBuffer buffer = register_buffers(pointers, bytes);
  state_->buffers.at(buffer.id()) = std::move(memory);
  return buffer;
}

RegisteredBuffer LoopbackGroup::register_buffers(std::span<void* const> pointers, std::uint64_t bytes) {
  const auto refuse = [](std::string cause) {
    throw Error(Code::kInvalidArgument, "cannot register buffers", std::move(cause));
  };
  if (pointers.size() != state_->ranks.size()) {
    refuse(fmt::format("there are {} for {} ranks", pointers.size(), state_->ranks.size()));
  }
  runtime::RegisteredRange range;
  for (std::size_t rank = 0; rank < pointers.size(); ++rank) {
    range.peer_base[rank] = reinterpret_cast<std::uintptr_t>(pointers[rank]);
    runtime::require_registrable(range.peer_base[rank], bytes);
    if (state_->ranks[rank]->buffers().overlapping(range.peer_base[rank], bytes) != nullptr) {
      refuse(fmt::format("that of rank {} overlaps one that is registered", rank));
    }
  }
  range.bytes = bytes;
  range.id = state_->next_id++;
  try {
    for (std::size_t rank = 0; rank < pointers.size(); ++rank) {
      range.base = range.peer_base[rank];
      state_->ranks[rank]->buffers().add(range, runtime::peer_offsets(range));
    }
    state_->buffers.try_emplace(range.id);
  } catch (...) {
    for (auto& rank : state_->ranks) rank->buffers().remove(range.id);
    throw;
  }
  return {range.id, bytes, {pointers.begin(), pointers.end()}};
}

void LoopbackGroup::release(const RegisteredBuffer& buffer) {
  const auto found = state_->buffers.find(buffer.id());
  if (found == state_->buffers.end()) {
    throw Error(Code::kInvalidArgument, "cannot release a buffer", "it is not registered, or was released before");
  }
  COMMFUSE_DRIVER(cuCtxSynchronize());
  for (auto& rank : state_->ranks) rank->buffers().remove(buffer.id());
  state_->buffers.erase(found);
}

}  // namespace commfuse
