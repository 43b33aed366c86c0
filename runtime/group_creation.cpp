#include "runtime/group_creation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "commfuse/version.hpp"
#include "runtime/driver.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"

namespace commfuse::runtime {
namespace {

/// Start of a rotation buffer: a whole number of L2 lines.
constexpr std::uint64_t kBufferAlignment = 256;
constexpr std::uint32_t kEmpty = 0xffffffffU;
/// After the rotation buffers and the signals: one slot per sender for the words of the self-test. At the end, so that
/// a mapping that is too short shows.
constexpr std::size_t kSlotBytes = 64;
constexpr std::size_t kSlotsBytes = kSlotBytes * device::kMaxWorldSize;
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

void fill(const OwnMemory& own, std::uint64_t offset, std::size_t bytes) {
  COMMFUSE_DRIVER(cuMemsetD32(own.pointer() + offset, kEmpty, bytes / sizeof(kEmpty)));
  // A memset of device memory may return before it is done.
  COMMFUSE_DRIVER(cuCtxSynchronize());
}

}  // namespace

Blob GroupCreation::Publication::write() const {
  ByteWriter writer;
  writer.integer(bytes);
  writer.integer(nonce);
  writer.raw(handle);
  return writer.take();
}

GroupCreation::Publication GroupCreation::Publication::read(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  Publication result;
  result.bytes = reader.integer<std::uint64_t>();
  result.nonce = reader.integer<std::uint64_t>();
  const auto handle = reader.raw(reader.left());
  result.handle.assign(handle.begin(), handle.end());
  return result;
}

GroupCreation::GroupCreation(Exchange& exchange, const WorkspaceOptions& options, MemoryKind asked)
    : exchange_(exchange), options_(options), asked_(asked), world_size_(exchange.size()) {
  rotation_bytes_ =
      (std::max<std::uint64_t>(options.rotation_bytes, 1) + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

void GroupCreation::agree_on_request() {
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

void GroupCreation::look_at_devices() {
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

std::unique_ptr<ProcessWorkspace> GroupCreation::share_memory() {
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

template <typename Part>
GroupCreation::StepResult GroupCreation::step(const Part& part) {
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

template <typename Part>
std::vector<Blob> GroupCreation::require(const Part& part) {
  StepResult result = step(part);
  if (!result.is_ok()) throw step_error(exchange_.group(), result.ranks);
  return std::move(result.payloads);
}

void GroupCreation::require_reachable(int rank) const {
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

Attempt GroupCreation::attempt(MemoryKind kind, ProcessWorkspace& workspace) {
  OwnMemory own;
  std::vector<PeerMapping> peers(static_cast<std::size_t>(world_size_));
  StepResult result = step([&] {
    own = OwnMemory(kind, device_, memory_bytes());
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

std::vector<Descriptor> GroupCreation::pass_descriptors(const OwnMemory& own) {
  std::vector<Descriptor> received(static_cast<std::size_t>(world_size_));
  // All of them, whatever comes of one: the others are in the same loop and count on it.
  std::exception_ptr refused;
  for (int from = 0; from < world_size_; ++from) {
    for (int to = 0; to < world_size_; ++to) {
      if (from == to) continue;
      try {
        Descriptor passed = exchange_.hand_over_descriptor(from, to, own.descriptor(), options_.set_up_timeout);
        if (to == exchange_.rank()) received[static_cast<std::size_t>(from)] = std::move(passed);
      } catch (const ExchangeError&) {
        throw;
      } catch (const Error&) {
        refused = std::current_exception();
      }
    }
  }
  if (refused) std::rethrow_exception(refused);
  return received;
}

void GroupCreation::map_peers(MemoryKind kind, const OwnMemory& own, const std::vector<Publication>& published,
                              std::vector<PeerMapping>& peers) {
  std::vector<Descriptor> received(peers.size());
  if (kind == MemoryKind::kVmmDescriptor) received = pass_descriptors(own);
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (rank == exchange_.rank()) continue;
    if (published[i].bytes < memory_bytes()) {
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

std::string GroupCreation::obstacle(int rank) const {
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

void GroupCreation::write_words(const std::vector<Publication>& published,
                                const std::vector<PeerMapping>& peers) const {
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    if (static_cast<int>(rank) == exchange_.rank()) continue;
    const std::uint32_t word = word_of(published[rank].nonce, exchange_.rank());
    COMMFUSE_DRIVER(cuMemcpyHtoD(peers[rank].pointer() + slot(exchange_.rank()), &word, sizeof(word)));
  }
  // A copy from pageable memory may return before it has arrived.
  COMMFUSE_DRIVER(cuCtxSynchronize());
}

void GroupCreation::check_words(const OwnMemory& own, std::uint64_t nonce) const {
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
  fill(own, shared_memory_bytes(rotation_bytes_), kSlotsBytes);
}

std::uint64_t GroupCreation::slot(int sender) const noexcept {
  return shared_memory_bytes(rotation_bytes_) + kSlotBytes * static_cast<std::uint64_t>(sender);
}

std::size_t GroupCreation::memory_bytes() const noexcept { return shared_memory_bytes(rotation_bytes_) + kSlotsBytes; }

}  // namespace commfuse::runtime
