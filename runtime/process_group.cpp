#include <fmt/format.h>

#include <utility>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"
#include "runtime/driver.hpp"
#include "runtime/group_buffers.hpp"
#include "runtime/group_creation.hpp"
#include "runtime/group_life.hpp"
#include "runtime/log.hpp"

namespace commfuse {
namespace runtime {
namespace {

/// How long a rank that leaves waits for the others to close their mappings of its memory.
constexpr Timeout kFarewell{2000};

/// The context that a group was made in.
class GroupContext {
 public:
  explicit GroupContext(CUcontext context) : context_(context) { COMMFUSE_DRIVER(cuCtxGetId(context, &id_)); }
  /// False when it was destroyed or reset, also where another came into its place, and at the end of the process.
  [[nodiscard]] bool is_alive() const noexcept {
    unsigned long long id = 0;
    const Driver* open = driver_if_open();
    return open != nullptr && open->cuCtxGetId(context_, &id) == CUDA_SUCCESS && id == id_;
  }
  [[nodiscard]] CUcontext get() const noexcept { return context_; }

 private:
  CUcontext context_;
  unsigned long long id_ = 0;
};

/// Makes it current while the object lives.
class ContextScope {
 public:
  explicit ContextScope(const GroupContext& context) noexcept {
    is_pushed_ = context.is_alive() && driver_if_open()->cuCtxPushCurrent(context.get()) == CUDA_SUCCESS;
  }
  ContextScope(ContextScope&& other) noexcept : is_pushed_(std::exchange(other.is_pushed_, false)) {}
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
  /// Makes the context current. Where it is gone, tells the others that this rank cannot go on.
  [[nodiscard]] runtime::ContextScope enter() const {
    runtime::ContextScope scope(context);
    if (scope.is_pushed()) return scope;
    constexpr const char* kGone = "the CUDA context in which the group was made is gone";
    exchange.abandon(Code::kDriver, kGone, runtime::kFarewell);
    throw Error(Code::kDriver, fmt::format("cannot use group '{}'", exchange.group()), kGone,
                "Destroy groups before their context, or make new ones after it was reset");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    const runtime::ContextScope scope(context);
    if (scope.is_pushed()) {
      COMMFUSE_DRIVER_NOEXCEPT(cuCtxSynchronize());
    } else {
      buffers->abandon();
      workspace->abandon();
    }
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
  runtime::GroupContext context;
  std::unique_ptr<runtime::ProcessWorkspace> workspace;
  std::unique_ptr<runtime::GroupBuffers> buffers;
  std::unique_ptr<runtime::GroupLife> life;
  MemoryKind kind = MemoryKind::kAuto;
  std::string reason;
};

ProcessGroup ProcessGroup::create(Exchange& exchange, const WorkspaceOptions& options, MemoryKind kind) {
  runtime::GroupCreation creation(exchange, options, kind);
  creation.agree_on_request();
  creation.look_at_devices();
  auto workspace = creation.share_memory();
  auto buffers =
      std::make_unique<runtime::GroupBuffers>(exchange, *workspace, creation.kind(), creation.device(), options);
  auto life = std::make_unique<runtime::GroupLife>(exchange, *workspace, creation.kind(), creation.device(), options);
  auto state = std::make_unique<State>(exchange, creation.context());
  state->workspace = std::move(workspace);
  state->buffers = std::move(buffers);
  state->life = std::move(life);
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
  const runtime::ContextScope scope = state_->enter();
  return state_->buffers->allocate(bytes);
}
RegisteredBuffer ProcessGroup::register_buffer(void* pointer, std::uint64_t bytes) {
  const runtime::ContextScope scope = state_->enter();
  return state_->buffers->register_buffer(pointer, bytes);
}
void ProcessGroup::release(const RegisteredBuffer& buffer) {
  const runtime::ContextScope scope = state_->enter();
  state_->buffers->release(buffer);
}

void ProcessGroup::reset() {
  const runtime::ContextScope scope = state_->enter();
  state_->life->reset();
}
void ProcessGroup::grow(std::uint64_t rotation_bytes) {
  const runtime::ContextScope scope = state_->enter();
  state_->life->grow(rotation_bytes);
}
void ProcessGroup::suspend() {
  const runtime::ContextScope scope = state_->enter();
  state_->life->suspend();
}
void ProcessGroup::resume() {
  const runtime::ContextScope scope = state_->enter();
  state_->life->resume();
}
void ProcessGroup::destroy() noexcept { state_.reset(); }

}  // namespace commfuse
