#include "runtime/memory_sharing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "device/params.cuh"
#include "runtime/exchange/keys.hpp"

namespace commfuse::runtime {
namespace {

/// One slot per sender for the words of the self-test. At the end, so that a mapping that is too short shows.
constexpr std::uint64_t kSlotBytes = 64;
constexpr std::uint64_t kSlotsBytes = kSlotBytes * device::kMaxWorldSize;

/// What `sender` writes into the memory of the rank with that nonce: never `empty`. Another memory or another sender
/// shows.
std::uint32_t word_of(std::uint64_t receiver_nonce, int sender, std::uint32_t empty) {
  const std::uint64_t mixed = (receiver_nonce + static_cast<std::uint64_t>(sender)) * 0x9e3779b97f4a7c15ULL;
  const auto word = static_cast<std::uint32_t>(mixed >> 32);
  return word == empty ? ~empty : word;
}

std::uint64_t fresh_nonce() {
  const Key key = random_key();
  std::uint64_t nonce = 0;
  static_assert(sizeof(key) >= sizeof(nonce));
  std::memcpy(&nonce, &key, sizeof(nonce));
  return nonce;
}

/// What may be in the way between this rank and another, as far as can be told.
std::string obstacle(const Exchange& exchange, int rank) {
  const HostIdentity& own = exchange.host(exchange.rank());
  const HostIdentity& other = exchange.host(rank);
  if (own.host != other.host) {
    return "The two run on different hosts: both need the same NVLink domain and a running IMEX service";
  }
  if (own.process == other.process && own.pid_namespace == other.pid_namespace) {
    return "The two are one process, which cannot open its own IPC handles: use memory of cuMemCreate "
           "(ProcessGroup::allocate makes it)";
  }
  if (own.ipc_namespace != other.ipc_namespace) {
    return "The two run in different IPC namespaces (containers): give them a common one (--ipc)";
  }
  if (own.pid_namespace != other.pid_namespace) {
    return "The two run in different PID namespaces (containers): give them a common one (--pid)";
  }
  return {};
}

}  // namespace

/// What a rank tells of its memory.
struct MemorySharing::Publication {
  std::uint64_t nonce = 0;
  MemoryOffer offer;

  [[nodiscard]] static Blob write(std::uint64_t nonce, std::span<const MemoryPart> parts) {
    ByteWriter writer;
    writer.integer(nonce);
    write_parts(writer, parts);
    return writer.take();
  }
  [[nodiscard]] static Publication read(MemoryKind kind, std::span<const std::byte> blob) {
    ByteReader reader(blob);
    Publication result;
    result.nonce = reader.integer<std::uint64_t>();
    result.offer = {kind, read_parts(reader)};
    return result;
  }
};

void pass_descriptors(GroupSteps& steps, std::span<const MemoryPart> own, std::span<MemoryOffer> offers) {
  Exchange& exchange = steps.exchange();
  std::size_t most_parts = 0;
  for (const MemoryOffer& offer : offers) most_parts = std::max(most_parts, offer.parts.size());
  // All of them, whatever comes of one: the others are in the same loop and count on it. Part by part, so that few are
  // under way at a time: the kernel limits them for each user.
  std::exception_ptr refused;
  for (std::size_t part = 0; part < most_parts; ++part) {
    for (int from = 0; from < steps.size(); ++from) {
      MemoryOffer& offer = offers[static_cast<std::size_t>(from)];
      if (offer.kind != MemoryKind::kVmmDescriptor || part >= offer.parts.size()) continue;
      const int given = from == steps.rank() ? own[part].descriptor.get() : -1;
      for (int to = 0; to < steps.size(); ++to) {
        if (from == to) continue;
        try {
          Descriptor passed = exchange.hand_over_descriptor(from, to, given, steps.timeout());
          if (to == steps.rank()) offer.parts[part].descriptor = std::move(passed);
        } catch (const ExchangeError&) {
          throw;
        } catch (const Error&) {
          refused = std::current_exception();
        }
      }
    }
  }
  if (refused) std::rethrow_exception(refused);
}

Error mapping_error(const Exchange& exchange, int rank, const Error& error) {
  const std::string in_the_way = obstacle(exchange, rank);
  return Error(error.code(), fmt::format("cannot map the memory of rank {}", rank),
               error.cause().empty() ? error.message() : fmt::format("{}: {}", error.message(), error.cause()),
               in_the_way.empty() ? error.remedy() : in_the_way);
}

MemorySharing::MemorySharing(GroupSteps& steps, CUdevice device, std::uint64_t bytes, std::uint32_t word,
                             bool self_test)
    : steps_(steps), device_(device), bytes_(std::max(bytes, kSlotsBytes)), word_(word), self_test_(self_test) {}

std::vector<Outcome> MemorySharing::attempt(MemoryKind kind, SharedMemory& memory) try {
  const bool is_new = memory.own.pointer() == 0;
  memory.peers.resize(static_cast<std::size_t>(steps_.size()));
  GroupSteps::Result result = steps_.publish([&]() -> Blob {
    if (is_new) {
      memory.own = OwnMemory(kind, device_, bytes_);
    } else {
      memory.own.resume();
    }
    // Before anybody can know the address: whoever maps it finds it empty.
    memory.own.fill(word_);
    return Publication::write(fresh_nonce(), memory.own.parts());
  });
  if (result.is_ok()) {
    std::vector<Publication> published;
    result = steps_.step([&] {
      for (const Blob& blob : result.payloads) published.push_back(Publication::read(kind, blob));
    });
    if (result.is_ok()) result = steps_.step([&] { map_peers(kind, memory, published); });
    memory.own.close_descriptors();
    if (self_test_) {
      if (result.is_ok()) result = steps_.step([&] { write_words(published, memory); });
      if (result.is_ok()) result = steps_.step([&] { check_words(published, memory); });
      if (result.is_ok()) result = steps_.step([&] { memory.own.fill(word_, bytes_ - kSlotsBytes, kSlotsBytes); });
    }
  }
  if (!result.is_ok()) {
    // Nobody frees what another still maps.
    if (is_new) memory.peers.clear();
    for (PeerMapping& peer : memory.peers) peer.suspend();
    memory.own.close_descriptors();
    steps_.barrier();
    memory.own.suspend();
    if (is_new) memory.own = OwnMemory();
  }
  return std::move(result.ranks);
} catch (const ExchangeError&) {
  // Not all ranks can be asked any more whether they have it mapped.
  memory.peers.clear();
  (void)memory.own.leave_to_peers();
  memory.own = OwnMemory();
  throw;
}

void MemorySharing::map_peers(MemoryKind kind, SharedMemory& memory, std::vector<Publication>& published) {
  std::vector<MemoryOffer> offers;
  offers.reserve(published.size());
  for (Publication& publication : published) offers.push_back(std::move(publication.offer));
  pass_descriptors(steps_, memory.own.parts(), offers);
  for (int rank = 0; rank < steps_.size(); ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (rank == steps_.rank()) continue;
    if (total_bytes(offers[i].parts) < bytes_) {
      throw Error(Code::kInvalidInput, fmt::format("the memory of rank {} is too small", rank));
    }
    try {
      if (memory.peers[i].pointer() == 0) {
        memory.peers[i] = PeerMapping(kind, device_, offers[i].parts);
      } else {
        memory.peers[i].resume(kind, device_, offers[i].parts);
      }
    } catch (const Error& error) {
      throw mapping_error(steps_.exchange(), rank, error);
    }
  }
}

void MemorySharing::write_words(const std::vector<Publication>& published, const SharedMemory& memory) const {
  for (int rank = 0; rank < steps_.size(); ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (rank == steps_.rank()) continue;
    const std::uint32_t word = word_of(published[i].nonce, steps_.rank(), word_);
    COMMFUSE_DRIVER(cuMemcpyHtoD(memory.peers[i].pointer() + slot(steps_.rank()), &word, sizeof(word)));
  }
  // A copy from pageable memory may return before it has arrived.
  COMMFUSE_DRIVER(cuCtxSynchronize());
}

void MemorySharing::check_words(const std::vector<Publication>& published, const SharedMemory& memory) const {
  const auto require = [](CUdeviceptr pointer, std::uint32_t expected, const std::string& trouble) {
    std::uint32_t found = 0;
    COMMFUSE_DRIVER(cuMemcpyDtoH(&found, pointer, sizeof(found)));
    if (found == expected) return;
    throw Error(Code::kUnsupported, trouble, fmt::format("found {:#010x} instead of {:#010x}", found, expected),
                "The driver offers access between these GPUs and it does not work; often an IOMMU or PCIe access "
                "control setting is the reason");
  };
  const auto nonce_of = [&](int rank) { return published[static_cast<std::size_t>(rank)].nonce; };
  const int own = steps_.rank();
  require(memory.own.pointer() + slot(own), word_, "something else wrote to it");
  for (int rank = 0; rank < steps_.size(); ++rank) {
    if (rank == own) continue;
    require(memory.own.pointer() + slot(rank), word_of(nonce_of(own), rank, word_),
            fmt::format("what rank {} wrote to it did not arrive", rank));
  }
  for (int rank = 0; rank < steps_.size(); ++rank) {
    if (rank == own) continue;
    require(memory.pointer(rank, own) + slot(own), word_of(nonce_of(rank), own, word_),
            fmt::format("what it reads from rank {} is not what it wrote there", rank));
  }
}

std::uint64_t MemorySharing::slot(int sender) const noexcept {
  return bytes_ - kSlotsBytes + kSlotBytes * static_cast<std::uint64_t>(sender);
}

}  // namespace commfuse::runtime
