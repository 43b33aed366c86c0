// The registered buffers of one rank of a ProcessGroup.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/engine_memory.hpp"
#include "runtime/group_steps.hpp"
#include "runtime/memory_sharing.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse::runtime {

/// All members but the destructor and close_mappings are collective and throw what ProcessGroup's functions of the same
/// names do.
class GroupBuffers {
 public:
  GroupBuffers(Exchange& exchange, WorkspaceState& workspace, MemoryKind kind, CUdevice device,
               const WorkspaceOptions& options);

  [[nodiscard]] RegisteredBuffer allocate(std::uint64_t bytes);
  [[nodiscard]] RegisteredBuffer register_buffer(const void* pointer, std::uint64_t bytes);
  void release(const RegisteredBuffer& buffer);

  /// Before the farewell of the group: the peers' memory is not touched any more.
  void close_mappings() noexcept;
  /// See OwnMemory::leave_to_peers; of all that `allocate` made.
  bool leave_memory_to_peers() noexcept;
  /// See ProcessWorkspace::abandon.
  void abandon() noexcept;

 private:
  /// The engine's memory that the peers have mapped, by the number under which they know it.
  struct Offered {
    std::uint64_t number = 0;
    int users = 0;
  };
  /// A peer's memory that we have mapped.
  struct Opened {
    PeerMapping mapping;
    int users = 0;
  };
  struct Buffer {
    int users = 0;         ///< registrations of the very same buffer
    SharedMemory memory;   ///< made by allocate; empty otherwise
    bool is_ours = false;  ///< made by allocate
    EngineMemory::Identity identity;
    std::vector<std::uint64_t> numbers;  ///< of the peers' memory in which theirs lies, by rank
    std::vector<void*> pointers;         ///< by rank
  };
  /// What a rank tells of the memory that it registers.
  struct Publication;

  [[nodiscard]] GroupSteps steps_to(std::string_view purpose) const;
  void require_same_request(const std::string& request) const;
  /// Under which this very buffer is registered already; 0 if it is new.
  [[nodiscard]] std::uint64_t registered_id(std::uintptr_t base, std::uint64_t bytes,
                                            const EngineMemory::Identity& identity) const;
  /// Maps what is not mapped yet; all or nothing.
  void open_peers(GroupSteps& steps, std::vector<Publication>& published, std::span<const MemoryPart> own);
  /// Makes a buffer known to launches. Where that fails on some rank, nothing of it stays.
  [[nodiscard]] RegisteredBuffer add(GroupSteps& steps, Buffer buffer, std::uint64_t bytes,
                                     const std::vector<std::uintptr_t>& pointers);
  /// Closes what is open for this buffer alone; when all have, its memory goes.
  void let_go(GroupSteps& steps, Buffer buffer);
  [[nodiscard]] RegisteredBuffer handle_of(std::uint64_t id, std::uint64_t bytes) const;
  /// One user less; closes what has none left.
  void close_peers(const std::vector<std::uint64_t>& numbers) noexcept;

  Exchange& exchange_;
  WorkspaceState& workspace_;
  MemoryKind kind_;
  CUdevice device_;
  Timeout timeout_;
  bool self_test_;
  bool one_host_;
  std::uint64_t next_id_ = 1;      ///< the same on all ranks
  std::uint64_t next_number_ = 1;  ///< of our own memory
  std::map<EngineMemory::Identity, Offered> offered_;
  std::vector<std::map<std::uint64_t, Opened>> opened_;  ///< by rank, by the owner's number
  std::map<std::uint64_t, Buffer> buffers_;              ///< by id
};

}  // namespace commfuse::runtime
