// The memory through which ranks exchange data, and the state of their protocol.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"

namespace commfuse {

/// Bytes of one rotation buffer that a call of `spec` with `tokens` tokens needs on every rank. Pure. A reduce-scatter
/// or all-gather whose ranks have uneven numbers of rows needs what one of world_size times the largest number needs.
[[nodiscard]] std::uint64_t required_rotation_bytes(const KernelSpec& spec, std::int64_t tokens) noexcept;
/// The same for every call that a deployment may make (its largest kernel at max_tokens). A workspace may be used for
/// any shape, type and operation that fits: the rule is capacity in bytes, not shape.
[[nodiscard]] std::uint64_t required_rotation_bytes(const Deployment& deployment);

struct WorkspaceOptions {
  std::uint64_t rotation_bytes = 0;  ///< capacity for one call; three times as much is allocated per rank
  std::chrono::nanoseconds timeout{std::chrono::seconds(10)};  ///< longest wait for a peer inside a kernel
  /// Measured choices for the planner; used if it was measured on such a device. The same on all ranks.
  PlannerTable planner_table = {};
  /// ProcessGroup: every rank writes to and reads from every other's memory before it is used. Some drivers offer
  /// access between GPUs that does not work. The same on all ranks.
  bool self_test = true;
  /// Every call is announced to all ranks before it is made, and all compare: a difference in operation, shape, type,
  /// options or number of the call becomes kMismatch on both sides, and two calls at once kBusy, instead of a wrong
  /// result or a time-out. Costs one small kernel and one exchange a call. The same on all ranks; needs the kernel of a
  /// deployment with "checking": true.
  bool checking = false;
  /// ProcessGroup: longest wait for a peer in one step of making the group.
  std::chrono::milliseconds set_up_timeout{std::chrono::seconds(60)};
};

/// Why the kernels of a workspace stopped: written by the first of them that failed.
struct Failure {
  Code code = Code::kOk;       ///< kOk: nothing failed; kTimeout, kAborted, kStale, kMismatch, kBusy
  int rank = 0;                ///< whose workspace this is
  int awaited_rank = -1;       ///< whose data was waited for, if any; kMismatch: whose call differs
  int origin_rank = -1;        ///< kAborted, kBusy: the rank that was aborted, or that made two calls at once
  std::uint64_t epoch = 0;     ///< number of the call, from 0
  std::uint32_t token = 0;     ///< the token that was waited for
  Op op = Op::kAllReduce;      ///< which operation
  std::string_view operation;  ///< name of its pattern
  bool before_call = false;    ///< checking mode: in the announcement of the call, before it began
  std::string_view field;      ///< kMismatch: what differs ("tokens"), and the two values of it
  std::uint32_t own_value = 0;
  std::uint32_t other_value = 0;

  /// A sentence for people, with the values in words.
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
  /// Ends the waiting kernels of the whole group, now and later, with kAborted: those of this rank and, through a word
  /// in their memory, those of all others. Returns at once. Any thread, but not while the group is made to grow,
  /// sleep or wake; a second call does nothing.
  virtual void abort() noexcept = 0;

 protected:
  Workspace() = default;
};

/// Memory of every rank that every other rank has mapped: calls whose tensors lie in it reach the peers' directly. A
/// value: the group that made it owns what is behind it, until it is released or the group goes, whichever is first.
class RegisteredBuffer {
 public:
  RegisteredBuffer() = default;
  /// For groups.
  RegisteredBuffer(std::uint64_t id, std::uint64_t bytes, std::vector<void*> pointers)
      : id_(id), bytes_(bytes), pointers_(std::move(pointers)) {}

  /// Where this process reaches the memory of `rank`. Throws std::out_of_range.
  [[nodiscard]] void* pointer(int rank) const { return pointers_.at(static_cast<std::size_t>(rank)); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// The same on all ranks; no two buffers of a group have the same. 0: none.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

 private:
  std::uint64_t id_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<void*> pointers_;
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
  /// As ProcessGroup::grow.
  void grow(std::uint64_t rotation_bytes);

  /// `bytes` bytes on every rank, aligned to 256, zeroed. Throws Error(kInvalidArgument, kOutOfMemory, kDriver). These
  /// three may not run while calls of the group are being launched.
  [[nodiscard]] RegisteredBuffer allocate(std::uint64_t bytes);
  /// The caller's own memory, one pointer per rank, aligned to 16; it must stay until it is released. Throws
  /// Error(kInvalidArgument), also for memory that overlaps a buffer of the same rank.
  [[nodiscard]] RegisteredBuffer register_buffers(std::span<void* const> pointers, std::uint64_t bytes);
  /// Waits for the work of the context; frees what allocate() made. Throws Error(kInvalidArgument) for a buffer that
  /// the group does not have.
  void release(const RegisteredBuffer& buffer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Exchange;

/// By what means a rank's memory is shared with the other ranks.
enum class MemoryKind : int {
  kAuto = 0,           ///< the first that works on all ranks: kVmmDescriptor, kVmmFabric, kLegacyIpc
  kVmmDescriptor = 1,  ///< cuMemCreate, passed as an open descriptor; needs an exchange that can pass descriptors
  kLegacyIpc = 2,      ///< cuIpcGetMemHandle; not between ranks of one process
  kVmmFabric = 3,      ///< cuMemCreate, passed as a fabric handle; the only one that reaches ranks of other hosts
};
/// "auto", "vmm_descriptor", "legacy_ipc", "vmm_fabric".
[[nodiscard]] std::string_view to_string(MemoryKind kind) noexcept;

/// One rank per process (or thread), all on one host, on GPUs that can reach each other or on the same GPU.
class ProcessGroup {
 public:
  /// Collective: every rank of `exchange` calls it, with the context that its kernels will run in current. Returns once
  /// every rank has mapped every other and has seen the others' writes arrive. `exchange` must outlive the group and
  /// must not be inside another call when the group is made or destroyed.
  ///
  /// A failure is thrown on every rank alike and leaves nothing behind: Error(kUnsupported) for ranks of different
  /// hosts, for devices that cannot reach each other, and where no kind works; kInvalidArgument, kOutOfMemory, kDriver,
  /// kNotFound as some rank met it, named in the text; ExchangeError(kMismatch) where the ranks asked for different
  /// things, and as Exchange says where a rank died or is missing.
  [[nodiscard]] static ProcessGroup create(Exchange& exchange, const WorkspaceOptions& options,
                                           MemoryKind kind = MemoryKind::kAuto);
  /// Waits for this context's work, closes all mappings, those of registered buffers included, waits a little for the
  /// others to do the same, and frees. Best effort; never throws; also where the context is gone already, and while the
  /// process ends. Groups of one exchange must be destroyed in the same order on all ranks, operations on its workspace
  /// in any.
  ~ProcessGroup();
  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;

  /// This rank's side; lives as long as the group.
  [[nodiscard]] Workspace& workspace() noexcept;
  /// The kind that was chosen; the same on all ranks, never kAuto.
  [[nodiscard]] MemoryKind kind() const noexcept;
  /// Why: what was tried and how it ended, on which rank. For logs.
  [[nodiscard]] std::string kind_reason() const;

  // The following are collective: all ranks make the same calls in the same order, none while it launches calls of this
  // group. They throw the same Error on every rank, naming the rank that it comes from, and then nothing has changed:
  // kInvalidArgument, kUnsupported, kOutOfMemory, kDriver, ExchangeError(kMismatch) where the ranks ask for different
  // things; or ExchangeError as Exchange says where a rank died or is missing, after which the group is only good for
  // being destroyed.

  /// `bytes` bytes on every rank in memory of the group's kind, aligned to 256, zeroed. The group owns it.
  [[nodiscard]] RegisteredBuffer allocate(std::uint64_t bytes);
  /// The engine's own memory, aligned to 16 and equally long on all ranks: part of one allocation of cuMemAlloc, or of
  /// neighbouring ones of cuMemCreate that were made with an exportable handle type. kUnsupported says what else it is
  /// (managed, from a memory pool, on the host ...) and what to do. The whole allocation is mapped into the peers, once
  /// for all buffers in it. It must stay until it is released. The very same buffer may be registered again by all
  /// ranks together: it is released when it has been as often. Buffers may not overlap otherwise.
  [[nodiscard]] RegisteredBuffer register_buffer(void* pointer, std::uint64_t bytes);
  /// Waits for this context's work; when it returns no peer has the memory mapped any more (unless another buffer of
  /// the same allocation is registered), so that its owner may free it; what allocate() made is freed. After an
  /// ExchangeError a peer may still have it open: memory of cuMemAlloc must then be kept until the peer is gone.
  void release(const RegisteredBuffer& buffer);

  /// After a failure or an abort: waits for the work of all ranks, empties the buffers and starts over at epoch 0.
  /// Graphs captured before keep working.
  void reset();
  /// Makes room for calls of `rotation_bytes` and starts over as reset() does; nothing happens where there is enough.
  /// Needs memory for the old and the new buffers at once. Operations go on with the new ones. Graphs captured before
  /// touch nothing when they are replayed: they fail with kStale, which is seen in Workspace::failure() and refuses
  /// further launches until reset().
  void grow(std::uint64_t rotation_bytes);
  /// Sleep mode: gives back the memory of the rotation buffers until resume(); launches meanwhile are refused with
  /// kStale, and so are graphs. Registered buffers stay. Nothing happens where it is suspended.
  void suspend();
  /// Takes memory again and starts over as reset() does. With kVmmDescriptor and kVmmFabric it has the addresses that
  /// it had, so graphs captured before work again; with kLegacyIpc they are refused as after grow(). After
  /// Error(kOutOfMemory) it is still suspended.
  void resume();
  /// What the destructor does. The group may then only be destroyed or assigned to.
  void destroy() noexcept;

 private:
  struct State;
  explicit ProcessGroup(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace commfuse
