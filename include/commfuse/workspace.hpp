// The memory through which ranks exchange data, and the state of their protocol.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"

namespace commfuse {

/// Bytes of one rotation buffer that a call of `spec` with `tokens` tokens needs on every rank. Pure.
[[nodiscard]] std::uint64_t required_rotation_bytes(const KernelSpec& spec, std::int64_t tokens) noexcept;
/// The same for every call that a deployment may make (its largest kernel at max_tokens). A workspace may be used for
/// any shape, type and operation that fits: the rule is capacity in bytes, not shape.
[[nodiscard]] std::uint64_t required_rotation_bytes(const Deployment& deployment);

struct WorkspaceOptions {
  std::uint64_t rotation_bytes = 0;  ///< capacity for one call; three times as much is allocated per rank
  std::chrono::nanoseconds timeout{std::chrono::seconds(10)};  ///< longest wait for a peer inside a kernel
};

/// Why the kernels of a workspace stopped: written by the first of them that failed.
struct Failure {
  Code code = Code::kOk;       ///< kOk: nothing failed; kTimeout, kAborted, kStale, kMismatch
  int rank = 0;                ///< whose workspace this is
  int awaited_rank = -1;       ///< whose data was waited for
  std::uint64_t epoch = 0;     ///< number of the call, from 0
  std::uint32_t token = 0;     ///< the token that was waited for
  std::string_view operation;  ///< name of the pattern

  [[nodiscard]] std::string text() const;
};

/// One rank's side of a group: its rotation buffers, its mappings of the peers', its control block. Calls of one
/// workspace must follow each other on one stream (or be ordered by events). Not copyable; the address is stable.
class Workspace {
 public:
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  virtual ~Workspace() = default;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int world_size() const noexcept = 0;
  /// Capacity of one call, in bytes of rotation buffer.
  [[nodiscard]] virtual std::uint64_t rotation_bytes() const noexcept = 0;
  /// The device's side of planning: SM count and how many ranks share the device.
  [[nodiscard]] virtual const DeviceCaps& caps() const noexcept = 0;

  /// What the device reported so far. Reads pinned memory: costs nothing, waits for nothing, any thread.
  [[nodiscard]] virtual Failure failure() const noexcept = 0;
  /// Makes this rank's waiting kernels, now and later, end with kAborted. Any thread.
  virtual void abort() noexcept = 0;

 protected:
  Workspace() = default;
};

/// All ranks in one process on one GPU: for tests, benchmarks and development. Uses the context that is current when it
/// is made; that context must be current when it is destroyed.
class LoopbackGroup {
 public:
  /// Throws Error(kInvalidArgument, kOutOfMemory, kDriver).
  LoopbackGroup(int world_size, const WorkspaceOptions& options);
  ~LoopbackGroup();
  LoopbackGroup(LoopbackGroup&&) noexcept;
  LoopbackGroup& operator=(LoopbackGroup&&) noexcept;

  [[nodiscard]] int world_size() const noexcept;
  [[nodiscard]] Workspace& workspace(int rank);

  /// After a failure or an abort, with no call under way: empties all buffers and starts over at epoch 0. Graphs
  /// captured before keep working.
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace commfuse
