#include "commfuse/workspace_metadata.hpp"

#include <nlohmann/json.hpp>

#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

constexpr std::int64_t kMostTokens = (std::int64_t{1} << 31) - 1;

}  // namespace

WorkspaceBytes required_bytes(std::uint64_t rotation_bytes) noexcept {
  WorkspaceBytes bytes;
  bytes.rotation_buffer = runtime::rounded_rotation_bytes(rotation_bytes);
  bytes.rotation_buffers = 3 * bytes.rotation_buffer;
  bytes.signals = runtime::shared_memory_bytes(bytes.rotation_buffer) - bytes.rotation_buffers;
  bytes.control = sizeof(device::Control);
  bytes.pinned = sizeof(device::HostMailbox) + sizeof(device::PeerSignals::stop);
  return bytes;
}

WorkspaceBytes required_bytes(const Deployment& deployment) {
  return required_bytes(required_rotation_bytes(deployment));
}

std::int64_t WorkspaceMetadata::max_tokens(const KernelSpec& spec) const noexcept {
  if (spec.world_size != world_size) return 0;
  const auto fits = [&](std::int64_t tokens) { return required_rotation_bytes(spec, tokens) <= bytes.rotation_buffer; };
  std::int64_t most = 0;
  for (std::int64_t step = std::int64_t{1} << 30; step > 0; step /= 2) {
    if (most + step <= kMostTokens && fits(most + step)) most += step;
  }
  return most;
}

Status WorkspaceMetadata::serves(const Deployment& deployment) const {
  if (deployment.world_size != world_size) {
    return {Code::kMismatch, "deployment", "is for another number of ranks than the workspace"};
  }
  if (required_rotation_bytes(deployment) > bytes.rotation_buffer) {
    return {Code::kCapacity, "workspace", "is too small for the deployment's largest call"};
  }
  if (checking && !deployment.checking) {
    return {Code::kNotWarmed, "deployment", "lacks \"checking\", which this workspace needs"};
  }
  return {};
}

std::string WorkspaceMetadata::to_json() const {
  const nlohmann::json object = {
      {"rank", rank},
      {"world_size", world_size},
      {"bytes",
       {{"rotation_buffer", bytes.rotation_buffer},
        {"rotation_buffers", bytes.rotation_buffers},
        {"signals", bytes.signals},
        {"control", bytes.control},
        {"pinned", bytes.pinned},
        {"shared", bytes.shared()},
        {"device", bytes.device()}}},
      {"generation", generation},
      {"checking", checking},
      {"timeout_ns", timeout.count()},
      {"sm_count", caps.sm_count},
      {"ranks_on_device", caps.ranks_on_device},
  };
  return object.dump();
}

WorkspaceMetadata metadata_of(const Workspace& workspace) {
  const auto* state = dynamic_cast<const runtime::WorkspaceState*>(&workspace);
  if (state == nullptr) {
    throw Error(Code::kInvalidArgument, "cannot describe a workspace", "it is not one that commfuse made",
                "make it with LoopbackGroup or ProcessGroup");
  }
  WorkspaceMetadata metadata;
  metadata.rank = state->rank();
  metadata.world_size = state->world_size();
  metadata.bytes = required_bytes(state->rotation_bytes());
  metadata.generation = state->generation();
  metadata.checking = state->is_checking();
  metadata.timeout = state->timeout();
  metadata.caps = state->caps();
  return metadata;
}

}  // namespace commfuse
