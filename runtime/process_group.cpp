#include <fmt/format.h>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"
#include "runtime/driver.hpp"
#include "runtime/group_buffers.hpp"
#include "runtime/group_creation.hpp"
#include "runtime/log.hpp"

namespace commfuse {
namespace runtime {
namespace {

/// How long a rank that leaves waits for the others to close their mappings of its memory.
constexpr Timeout kFarewell{2000};

/// The context that a group was made in, current while the object lives.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context) noexcept {
    if (const Driver* open = driver_if_open()) is_pushed_ = open->cuCtxPushCurrent(context) == CUDA_SUCCESS;
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (is_pushed_) COMMFUSE_DRIVER_NOEXCEPT(cuCtxPopCurrent(&popped));
  }
  [[nodiscard]] bool is_pushed() const noexcept { return is_pushed_; }

 private:
  bool is_pushed_ = false;
};

}  // namespace
}  // namespace runtime

struct ProcessGroup::State {
  State(Exchange& its_exchange, CUcontext its_context) : exchange(its_exchange), context(its_context) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    const runtime::ContextScope scope(context);
    if (scope.is_pushed()) COMMFUSE_DRIVER_NOEXCEPT(cuCtxSynchronize());
    buffers->close_mappings();
    workspace->close_mappings();
    try {
      exchange.barrier(runtime::kFarewell);
    } catch (const std::exception& error) {
      log(LogLevel::kInfo, error.what());
      const bool buffers_kept = buffers->leave_memory_to_peers();
      if (workspace->leave_memory_to_peers() || buffers_kept) {
        log(LogLevel::kWarning,
            "a group's memory is kept until the context goes: not all ranks said that they have closed their mappings "
            "of it");
      }
    }
    buffers.reset();
    workspace.reset();
  }

  Exchange& exchange;
  CUcontext context;
  std::unique_ptr<runtime::ProcessWorkspace> workspace;
  std::unique_ptr<runtime::GroupBuffers> buffers;
  MemoryKind kind = MemoryKind::kAuto;
  std::string reason;
};

ProcessGroup ProcessGroup::create(Exchange& exchange, const WorkspaceOptions& options, MemoryKind kind) {
  runtime::GroupCreation creation(exchange, options, kind);
  creation.agree_on_request();
  creation.look_at_devices();
  auto workspace = creation.share_memory();
  auto buffers = std::make_unique<runtime::GroupBuffers>(exchange, *workspace, creation.kind(), creation.device(),
                                                         options.set_up_timeout);
  auto state = std::make_unique<State>(exchange, creation.context());
  state->workspace = std::move(workspace);
  state->buffers = std::move(buffers);
  state->kind = creation.kind();
  state->reason = creation.reason();
  log(LogLevel::kInfo,
      fmt::format("group '{}', rank {} of {}: {}", exchange.group(), exchange.rank(), exchange.size(), state->reason));
  return ProcessGroup(std::move(state));
}

ProcessGroup::ProcessGroup(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ProcessGroup::~ProcessGroup() = default;
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;

Workspace& ProcessGroup::workspace() noexcept { return *state_->workspace; }
MemoryKind ProcessGroup::kind() const noexcept { return state_->kind; }
std::string ProcessGroup::kind_reason() const { return state_->reason; }

RegisteredBuffer ProcessGroup::allocate(std::uint64_t bytes) {
  const runtime::ContextScope scope(state_->context);
  return state_->buffers->allocate(bytes);
}
RegisteredBuffer ProcessGroup::register_buffer(void* pointer, std::uint64_t bytes) {
  const runtime::ContextScope scope(state_->context);
  return state_->buffers->register_buffer(pointer, bytes);
}
void ProcessGroup::release(const RegisteredBuffer& buffer) {
  const runtime::ContextScope scope(state_->context);
  state_->buffers->release(buffer);
}

}  // namespace commfuse
