// How much memory a workspace takes, and what an existing one can be used for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"
#include "commfuse/workspace.hpp"

namespace commfuse {

/// Everything that one rank of a group takes, in bytes, before the driver rounds up (memory that is passed as a
/// descriptor comes in units of 2 MiB).
struct WorkspaceBytes {
  std::uint64_t rotation_buffer = 0;   ///< one of the three: the capacity for one call
  std::uint64_t rotation_buffers = 0;  ///< all three
  std::uint64_t signals = 0;           ///< words through which peers signal
  std::uint64_t control = 0;           ///< state of the protocol
  std::uint64_t pinned = 0;            ///< host memory: the mailbox, and the word that abort() sends

  /// The device memory that the peers map.
  [[nodiscard]] std::uint64_t shared() const noexcept { return rotation_buffers + signals; }
  /// All device memory.
  [[nodiscard]] std::uint64_t device() const noexcept { return shared() + control; }

  [[nodiscard]] bool operator==(const WorkspaceBytes&) const = default;
};

/// What a workspace takes whose WorkspaceOptions::rotation_bytes is `rotation_bytes` (rounded up to whole L2 lines).
[[nodiscard]] WorkspaceBytes required_bytes(std::uint64_t rotation_bytes) noexcept;
/// What a workspace takes that serves every call of a deployment.
[[nodiscard]] WorkspaceBytes required_bytes(const Deployment& deployment);

/// What there is to know of a workspace without using it: a value that can be kept, compared and printed.
struct WorkspaceMetadata {
  int rank = 0;
  int world_size = 1;
  WorkspaceBytes bytes;
  std::uint32_t generation = 0;
  bool checking = false;
  std::chrono::nanoseconds timeout{0};
  DeviceCaps caps;

  /// Most tokens of one call of such a kernel, at most 2^31 - 1. 0: the kernel is for another world size, or a single
  /// row does not fit.
  [[nodiscard]] std::int64_t max_tokens(const KernelSpec& spec) const noexcept;
  /// Whether the workspace serves every call of a deployment. Its types, patterns and hidden sizes do not matter, only
  /// the bytes of its largest call and the number of ranks: kMismatch for another number of ranks, kCapacity where a
  /// call is too large, kNotWarmed for a workspace in checking mode and a deployment without "checking".
  [[nodiscard]] Status serves(const Deployment& deployment) const;
  /// One object with all of it; sizes in bytes, the time in nanoseconds.
  [[nodiscard]] std::string to_json() const;
};

/// Throws Error(kInvalidArgument) for a workspace that commfuse did not make.
[[nodiscard]] WorkspaceMetadata metadata_of(const Workspace& workspace);

}  // namespace commfuse
