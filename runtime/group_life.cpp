#include "runtime/group_life.hpp"

#include <fmt/format.h>

#include "runtime/exchange/bytes.hpp"

namespace commfuse::runtime {

GroupLife::GroupLife(Exchange& exchange, ProcessWorkspace& workspace, MemoryKind kind, CUdevice device,
                     const WorkspaceOptions& options)
    : exchange_(exchange),
      workspace_(workspace),
      kind_(kind),
      device_(device),
      timeout_(options.set_up_timeout),
      self_test_(options.self_test) {}

void GroupLife::reset() {
  GroupSteps steps = agree_to("reset the workspace");
  require_awake(steps);
  // A kernel of a slower rank may still write to the others.
  steps.require([] { COMMFUSE_DRIVER(cuCtxSynchronize()); });
  steps.require([&] {
    workspace_.memory().own.fill(kEmptyWord);
    workspace_.restart(workspace_.generation());
  });
}

void GroupLife::grow(std::uint64_t rotation_bytes) {
  rotation_bytes = rounded_rotation_bytes(rotation_bytes);
  GroupSteps steps = agree_to(fmt::format("grow the workspace to {} bytes", rotation_bytes));
  require_awake(steps);
  if (rotation_bytes <= workspace_.rotation_bytes()) return;
  SharedMemory memory;
  MemorySharing sharing(steps, device_, shared_memory_bytes(rotation_bytes), kEmptyWord, self_test_);
  const std::vector<Outcome> ranks = sharing.attempt(kind_, memory);
  if (!all_ok(ranks)) throw steps.error_of(ranks);
  const GroupSteps::Result result = steps.step([&] {
    // Who still has a call under way uses the old memory.
    COMMFUSE_DRIVER(cuCtxSynchronize());
    workspace_.restart(workspace_.generation() + 1);
  });
  if (result.is_ok()) memory = workspace_.take(std::move(memory), rotation_bytes);
  // Now it is what is not needed: the old memory, or the new.
  memory.peers.clear();
  try {
    steps.barrier();
  } catch (const ExchangeError&) {
    (void)memory.own.leave_to_peers();
    throw;
  }
  if (!result.is_ok()) throw steps.error_of(result.ranks);
}

void GroupLife::suspend() {
  GroupSteps steps = agree_to("suspend the workspace");
  if (workspace_.is_suspended()) return;
  const GroupSteps::Result result = steps.step([&] {
    COMMFUSE_DRIVER(cuCtxSynchronize());
    // Graphs that are replayed meanwhile end at once instead of touching memory that is not there.
    workspace_.tell_generation(kSuspendedGeneration);
  });
  if (!result.is_ok()) {
    if (result.ranks[static_cast<std::size_t>(steps.rank())].code == Code::kOk) {
      workspace_.tell_generation(workspace_.generation());
    }
    throw steps.error_of(result.ranks);
  }
  workspace_.set_suspended(true);
  let_go(steps);
}

void GroupLife::resume() {
  GroupSteps steps = agree_to("resume the workspace");
  if (!workspace_.is_suspended()) return;
  MemorySharing sharing(steps, device_, shared_memory_bytes(workspace_.rotation_bytes()), kEmptyWord, self_test_);
  const std::vector<Outcome> ranks = sharing.attempt(kind_, workspace_.memory());
  if (!all_ok(ranks)) throw steps.error_of(ranks);
  const GroupSteps::Result result = steps.step([&] {
    // Memory of cuMemAlloc comes back wherever the driver puts it.
    workspace_.restart(workspace_.generation() + (kind_ == MemoryKind::kLegacyIpc ? 1 : 0));
  });
  if (!result.is_ok()) {
    let_go(steps);
    throw steps.error_of(result.ranks);
  }
  workspace_.find_peers();
  workspace_.set_suspended(false);
}

GroupSteps GroupLife::agree_to(const std::string& purpose) {
  const std::string request =
      fmt::format("{}, which is {}", purpose, workspace_.is_suspended() ? "suspended" : "awake");
  agree(exchange_, "what shall become of the workspace", as_span(request), timeout_);
  return {exchange_, timeout_, fmt::format("{} of group '{}'", purpose, exchange_.group())};
}

void GroupLife::require_awake(const GroupSteps& steps) const {
  if (!workspace_.is_suspended()) return;
  throw Error(Code::kInvalidArgument, "cannot " + steps.purpose(), "it is suspended", "Resume it first");
}

void GroupLife::let_go(GroupSteps& steps) {
  SharedMemory& memory = workspace_.memory();
  const bool is_reserved = kind_ != MemoryKind::kLegacyIpc;
  if (is_reserved) {
    for (PeerMapping& peer : memory.peers) peer.suspend();
  } else {
    memory.peers.clear();
  }
  try {
    steps.barrier();
  } catch (const ExchangeError&) {
    (void)memory.own.leave_to_peers();
    throw;
  }
  if (is_reserved) {
    memory.own.suspend();
  } else {
    memory.own = OwnMemory();
  }
}

}  // namespace commfuse::runtime
