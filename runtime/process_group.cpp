// Making a group, on each rank; every line is one collective step that all ranks take together (docs/workspace.md):
//
//   agree on the request -> one host? -> devices -> reachable? -> for each kind until one works everywhere:
//     allocate, fill, publish -> pass descriptors -> map -> write a word to each peer -> read own words, fill again
//
// What fails on one rank is told to all before anybody acts on it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "commfuse/exchange.hpp"
#include "commfuse/version.hpp"
#include "commfuse/workspace.hpp"
#include "runtime/driver.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"
#include "runtime/group_plan.hpp"
#include "runtime/log.hpp"
#include "runtime/peer_memory.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace runtime {
namespace {

/// Start of a rotation buffer: a whole number of L2 lines.
constexpr std::uint64_t kBufferAlignment = 256;
constexpr std::uint32_t kEmpty = 0xffffffffU;
/// After the rotation buffers: one slot per sender for the words of the self-test. At the end, so that a mapping that
/// is too short shows.
constexpr std::size_t kSlotBytes = 64;
constexpr std::size_t kSlotsBytes = kSlotBytes * device::kMaxWorldSize;
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

class ProcessWorkspace final : public WorkspaceState {
 public:
  ProcessWorkspace(const Exchange& exchange, const WorkspaceOptions& options, std::uint64_t rotation_bytes,
                   const DeviceCaps& caps)
      : control_memory_(sizeof(device::Control)), mailbox_memory_(sizeof(device::HostMailbox)) {
    rank_ = exchange.rank();
    world_size_ = exchange.size();
    rotation_bytes_ = rotation_bytes;
    timeout_ns_ = static_cast<std::uint64_t>(options.timeout.count());
    caps_ = caps;
    control_memory_.fill(0);
    COMMFUSE_DRIVER(cuCtxSynchronize());
    control_ = control_memory_.as<device::Control>();
    mailbox_ = static_cast<device::HostMailbox*>(mailbox_memory_.host());
    device_mailbox_ = reinterpret_cast<device::HostMailbox*>(mailbox_memory_.device());
  }

  void take(OwnMemory own, std::vector<PeerMapping> peers) {
    own_ = std::move(own);
    peers_ = std::move(peers);
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) peer_buffer_[rank] = peers_[rank].pointer();
    peer_buffer_[rank_] = own_.pointer();
  }
  void close_mappings() noexcept { peers_.clear(); }

 private:
  DeviceBuffer control_memory_;
  PinnedBuffer mailbox_memory_;
  OwnMemory own_;
  std::vector<PeerMapping> peers_;  ///< by rank; the own one is empty
};

/// What a rank tells of its memory.
struct Publication {
  std::uint64_t bytes = 0;
  std::uint64_t nonce = 0;
  Blob handle;

  [[nodiscard]] Blob write() const {
    ByteWriter writer;
    writer.integer(bytes);
    writer.integer(nonce);
    writer.raw(handle);
    return writer.take();
  }
  static Publication read(std::span<const std::byte> blob) {
    ByteReader reader(blob);
    Publication result;
    result.bytes = reader.integer<std::uint64_t>();
    result.nonce = reader.integer<std::uint64_t>();
    const auto handle = reader.raw(reader.left());
    result.handle.assign(handle.begin(), handle.end());
    return result;
  }
};

/// What `sender` writes into the memory of the rank with that nonce. Another memory or another sender shows.
std::uint32_t word_of(std::uint64_t receiver_nonce, int sender) {
  const std::uint64_t mixed = (receiver_nonce + static_cast<std::uint64_t>(sender)) * 0x9e3779b97f4a7c15ULL;
  const auto word = static_cast<std::uint32_t>(mixed >> 32);
  return word == kEmpty ? 0 : word;
}

std::uint64_t fresh_nonce() {
  const Key key = random_key();
  std::uint64_t nonce = 0;
  static_assert(sizeof(key) >= sizeof(nonce));
  std::memcpy(&nonce, &key, sizeof(nonce));
  return nonce;
}

/// The steps of making a group, on one rank.
class Creation {
 public:
  Creation(Exchange& exchange, const WorkspaceOptions& options, MemoryKind asked)
      : exchange_(exchange), options_(options), asked_(asked), world_size_(exchange.size()) {
    rotation_bytes_ = (std::max<std::uint64_t>(options.rotation_bytes, 1) + kBufferAlignment - 1) / kBufferAlignment *
                      kBufferAlignment;
  }

  void agree_on_request() {
    if (world_size_ > static_cast<int>(device::kMaxWorldSize)) {
      throw Error(Code::kInvalidArgument, fmt::format("cannot share memory in group '{}'", exchange_.group()),
                  fmt::format("it has {} ranks", world_size_), fmt::format("at most {} can", device::kMaxWorldSize));
    }
    const std::string request =
        fmt::format("commfuse {}, rotation bytes {}, parameter block of {} bytes, memory kind {}",
                    COMMFUSE_VERSION_STRING, rotation_bytes_, sizeof(device::AllReduceParams), to_string(asked_));
    agree(exchange_, "the workspace", as_span(request), options_.set_up_timeout);
    require_one_host(exchange_);
  }

  void look_at_devices() {
    RankDevice own;
    const auto blobs = require([&] {
      if (options_.timeout.count() <= 0) {
        throw Error(Code::kInvalidArgument, "the timeout of the workspace is not positive", "",
                    "Every wait on the GPU is bounded; give the longest time that a peer may be late");
      }
      (void)driver();
      COMMFUSE_DRIVER(cuCtxGetCurrent(&context_));
      if (context_ == nullptr) {
        throw Error(Code::kInvalidArgument, "no CUDA context is current", "",
                    "Make the context in which the kernels will run current before the group is made");
      }
      COMMFUSE_DRIVER(cuCtxGetDevice(&device_));
      CUuuid uuid{};
      COMMFUSE_DRIVER(cuDeviceGetUuid(&uuid, device_));
      static_assert(sizeof(uuid) == sizeof(own.uuid));
      std::memcpy(own.uuid.data(), &uuid, sizeof(uuid));
      COMMFUSE_DRIVER(cuDeviceGetAttribute(&own.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
      return own.write();
    });
    for (const Blob& blob : blobs) devices_.push_back(RankDevice::read(blob));
    caps_ = common_caps(devices_);
    (void)require([&] {
      for (int rank = 0; rank < world_size_; ++rank) require_reachable(rank);
      return Blob();
    });
  }

  [[nodiscard]] std::unique_ptr<ProcessWorkspace> share_memory() {
    std::unique_ptr<ProcessWorkspace> workspace;
    (void)require([&] {
      workspace = std::make_unique<ProcessWorkspace>(exchange_, options_, rotation_bytes_, caps_);
      return Blob();
    });
    for (const MemoryKind kind : kinds_to_try(asked_)) {
      attempts_.push_back(attempt(kind, *workspace));
      if (all_ok(attempts_.back().ranks)) return workspace;
    }
    throw no_kind_error(exchange_.group(), attempts_);
  }

  [[nodiscard]] CUcontext context() const noexcept { return context_; }
  [[nodiscard]] MemoryKind kind() const noexcept { return attempts_.back().kind; }
  [[nodiscard]] std::string reason() const { return reason_of(attempts_); }

 private:
  struct StepResult {
    std::vector<Outcome> ranks;
    std::vector<Blob> payloads;
    [[nodiscard]] bool is_ok() const noexcept { return all_ok(ranks); }
  };

  /// Does this rank's part, and tells the others how it ended. No rank gets beyond it before all have done theirs.
  template <typename Part>
  StepResult step(const Part& part) {
    Outcome outcome;
    Blob payload;
    try {
      payload = part();
    } catch (const ExchangeError&) {
      throw;  // the exchange has told everybody
    } catch (const Error& error) {
      outcome = {error.code(),
                 error.cause().empty() ? error.message() : fmt::format("{}: {}", error.message(), error.cause()),
                 error.remedy()};
    } catch (const std::bad_alloc&) {
      outcome = {Code::kOutOfMemory, "the host is out of memory", ""};
    } catch (const std::exception& error) {
      outcome = {Code::kInternal, error.what(), ""};
    }
    StepResult result;
    for (const Blob& blob : exchange_.all_gather(write_outcome(outcome, payload), options_.set_up_timeout)) {
      ReadOutcome read = read_outcome(blob);
      result.ranks.push_back(std::move(read.outcome));
      result.payloads.push_back(std::move(read.payload));
    }
    return result;
  }

  /// A step without which there is no group. Everybody's payload.
  template <typename Part>
  std::vector<Blob> require(const Part& part) {
    StepResult result = step(part);
    if (!result.is_ok()) throw step_error(exchange_.group(), result.ranks);
    return std::move(result.payloads);
  }

  void require_reachable(int rank) const {
    const RankDevice& peer = devices_[static_cast<std::size_t>(rank)];
    if (peer.uuid == devices_[static_cast<std::size_t>(exchange_.rank())].uuid) return;
    int count = 0;
    COMMFUSE_DRIVER(cuDeviceGetCount(&count));
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      CUdevice candidate = 0;
      COMMFUSE_DRIVER(cuDeviceGet(&candidate, ordinal));
      CUuuid uuid{};
      COMMFUSE_DRIVER(cuDeviceGetUuid(&uuid, candidate));
      if (std::memcmp(peer.uuid.data(), &uuid, sizeof(uuid)) != 0) continue;
      int can_access = 0;
      COMMFUSE_DRIVER(cuDeviceCanAccessPeer(&can_access, device_, candidate));
      if (can_access != 0) return;
      throw Error(Code::kUnsupported, fmt::format("its GPU cannot access the GPU of rank {}", rank), "",
                  "Put the ranks on GPUs that are connected: 'nvidia-smi topo -p2p rw' shows which are");
    }
    // A device that this process may not see: whether it can be mapped all the same shows when it is tried.
  }

  /// Maps peers into `workspace`, or leaves nothing behind.
  Attempt attempt(MemoryKind kind, ProcessWorkspace& workspace) {
    OwnMemory own;
    std::vector<PeerMapping> peers(static_cast<std::size_t>(world_size_));
    StepResult result = step([&] {
      own = OwnMemory(kind, device_, rotation_bytes_ * 3 + kSlotsBytes);
      // Before anybody can know the address: whoever maps it finds it empty.
      fill(own, 0, own.bytes());
      Publication publication{own.bytes(), fresh_nonce(), {own.handle().begin(), own.handle().end()}};
      return publication.write();
    });
    if (!result.is_ok()) return {kind, std::move(result.ranks)};
    std::vector<Publication> published;
    for (const Blob& blob : result.payloads) published.push_back(Publication::read(blob));

    result = step([&] {
      map_peers(kind, own, published, peers);
      return Blob();
    });
    own.close_descriptor();
    if (result.is_ok()) {
      result = step([&] {
        write_words(published, peers);
        return Blob();
      });
    }
    if (result.is_ok()) {
      result = step([&] {
        check_words(own, published[static_cast<std::size_t>(exchange_.rank())].nonce);
        return Blob();
      });
    }
    if (result.is_ok()) {
      workspace.take(std::move(own), std::move(peers));
    } else {
      // Nobody frees what another still maps.
      peers.clear();
      exchange_.barrier(options_.set_up_timeout);
    }
    return {kind, std::move(result.ranks)};
  }

  void map_peers(MemoryKind kind, const OwnMemory& own, const std::vector<Publication>& published,
                 std::vector<PeerMapping>& peers) {
    const int self = exchange_.rank();
    std::vector<Descriptor> received(peers.size());
    if (kind == MemoryKind::kVmmDescriptor) {
      // All of them, whatever comes of one: the others are in the same loop and count on it.
      std::exception_ptr refused;
      for (int from = 0; from < world_size_; ++from) {
        for (int to = 0; to < world_size_; ++to) {
          if (from == to) continue;
          try {
            Descriptor passed = exchange_.hand_over_descriptor(from, to, own.descriptor(), options_.set_up_timeout);
            if (to == self) received[static_cast<std::size_t>(from)] = std::move(passed);
          } catch (const ExchangeError&) {
            throw;
          } catch (const Error&) {
            refused = std::current_exception();
          }
        }
      }
      if (refused) std::rethrow_exception(refused);
    }
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      if (rank == self) continue;
      if (published[i].bytes < rotation_bytes_ * 3 + kSlotsBytes) {
        throw Error(Code::kInvalidInput, fmt::format("the memory of rank {} is too small", rank));
      }
      try {
        peers[i] = PeerMapping(kind, device_, published[i].bytes, published[i].handle, received[i].get());
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("cannot map the memory of rank {}", rank),
                    error.cause().empty() ? error.message() : fmt::format("{}: {}", error.message(), error.cause()),
                    obstacle(rank).empty() ? error.remedy() : obstacle(rank));
      }
    }
  }

  /// What may be in the way between this rank and another, as far as can be told.
  [[nodiscard]] std::string obstacle(int rank) const {
    const HostIdentity& own = exchange_.host(exchange_.rank());
    const HostIdentity& other = exchange_.host(rank);
    if (own.ipc_namespace != other.ipc_namespace) {
      return "The two run in different IPC namespaces (containers): give them a common one (--ipc)";
    }
    if (own.pid_namespace != other.pid_namespace) {
      return "The two run in different PID namespaces (containers): give them a common one (--pid)";
    }
    return {};
  }

  void write_words(const std::vector<Publication>& published, const std::vector<PeerMapping>& peers) const {
    for (std::size_t rank = 0; rank < peers.size(); ++rank) {
      if (static_cast<int>(rank) == exchange_.rank()) continue;
      const std::uint32_t word = word_of(published[rank].nonce, exchange_.rank());
      COMMFUSE_DRIVER(cuMemcpyHtoD(peers[rank].pointer() + slot(exchange_.rank()), &word, sizeof(word)));
    }
    // A copy from pageable memory may return before it has arrived.
    COMMFUSE_DRIVER(cuCtxSynchronize());
  }

  void check_words(const OwnMemory& own, std::uint64_t nonce) const {
    for (int rank = 0; rank < world_size_; ++rank) {
      std::uint32_t found = 0;
      COMMFUSE_DRIVER(cuMemcpyDtoH(&found, own.pointer() + slot(rank), sizeof(found)));
      const std::uint32_t expected = rank == exchange_.rank() ? kEmpty : word_of(nonce, rank);
      if (found == expected) continue;
      throw Error(Code::kUnsupported, fmt::format("what rank {} wrote to it did not arrive", rank),
                  fmt::format("found {:#010x} instead of {:#010x}", found, expected),
                  "The driver offers access between these GPUs and it does not work; often an IOMMU or PCIe access "
                  "control setting is the reason");
    }
    fill(own, rotation_bytes_ * 3, kSlotsBytes);
  }

  [[nodiscard]] std::uint64_t slot(int sender) const {
    return rotation_bytes_ * 3 + kSlotBytes * static_cast<std::uint64_t>(sender);
  }
  static void fill(const OwnMemory& own, std::uint64_t offset, std::size_t bytes) {
    COMMFUSE_DRIVER(cuMemsetD32(own.pointer() + offset, kEmpty, bytes / sizeof(kEmpty)));
    // A memset of device memory may return before it is done.
    COMMFUSE_DRIVER(cuCtxSynchronize());
  }

  Exchange& exchange_;
  WorkspaceOptions options_;
  MemoryKind asked_;
  int world_size_;
  std::uint64_t rotation_bytes_ = 0;
  CUcontext context_ = nullptr;
  CUdevice device_ = 0;
  std::vector<RankDevice> devices_;
  DeviceCaps caps_;
  std::vector<Attempt> attempts_;
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
    workspace->close_mappings();
    try {
      exchange.barrier(runtime::kFarewell);
    } catch (const std::exception& error) {
      log(LogLevel::kInfo, error.what());
    }
    workspace.reset();
  }

  Exchange& exchange;
  CUcontext context;
  std::unique_ptr<runtime::ProcessWorkspace> workspace;
  MemoryKind kind = MemoryKind::kAuto;
  std::string reason;
};

ProcessGroup ProcessGroup::create(Exchange& exchange, const WorkspaceOptions& options, MemoryKind kind) {
  runtime::Creation creation(exchange, options, kind);
  creation.agree_on_request();
  creation.look_at_devices();
  auto workspace = creation.share_memory();
  auto state = std::make_unique<State>(exchange, creation.context());
  state->workspace = std::move(workspace);
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

}  // namespace commfuse
