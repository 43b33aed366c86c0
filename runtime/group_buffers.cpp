#include "runtime/group_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace commfuse::runtime {

struct GroupBuffers::Publication {
  std::uint64_t registered_id = 0;  ///< this very buffer is registered already; nothing else is said then
  std::uint64_t number = 0;         ///< of the rank's memory in which it lies
  std::uint64_t offset = 0;         ///< from the start of that
  std::uint64_t bytes = 0;          ///< of all that memory
  bool is_new = false;              ///< the peers have not mapped it yet; `offer` says how
  MemoryOffer offer;

  [[nodiscard]] static Blob write(const Publication& publication, std::span<const MemoryPart> parts) {
    ByteWriter writer;
    writer.integer(publication.registered_id);
    writer.integer(publication.number);
    writer.integer(publication.offset);
    writer.integer(publication.bytes);
    writer.integer(static_cast<std::uint8_t>(publication.is_new));
    writer.integer(static_cast<std::uint8_t>(publication.offer.kind));
    write_parts(writer, parts);
    return writer.take();
  }
  [[nodiscard]] static Publication read(std::span<const std::byte> blob) {
    ByteReader reader(blob);
    Publication result;
    result.registered_id = reader.integer<std::uint64_t>();
    result.number = reader.integer<std::uint64_t>();
    result.offset = reader.integer<std::uint64_t>();
    result.bytes = reader.integer<std::uint64_t>();
    result.is_new = reader.integer<std::uint8_t>() != 0;
    result.offer.kind = static_cast<MemoryKind>(reader.integer<std::uint8_t>());
    result.offer.parts = read_parts(reader);
    return result;
  }
};

GroupBuffers::GroupBuffers(Exchange& exchange, WorkspaceState& workspace, MemoryKind kind, CUdevice device,
                           const WorkspaceOptions& options)
    : exchange_(exchange),
      workspace_(workspace),
      kind_(kind),
      device_(device),
      timeout_(options.set_up_timeout),
      self_test_(options.self_test),
      one_host_(is_one_host(exchange)),
      opened_(static_cast<std::size_t>(exchange.size())) {}

RegisteredBuffer GroupBuffers::allocate(std::uint64_t bytes) {
  GroupSteps steps = steps_to("allocate a buffer");
  require_same_request(fmt::format("allocate {} bytes", bytes));
  if (bytes == 0) throw Error(Code::kInvalidArgument, "cannot " + steps.purpose(), "it has no bytes");
  Buffer buffer;
  buffer.is_ours = true;
  MemorySharing sharing(steps, device_, (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment, 0,
                        self_test_);
  const std::vector<Outcome> ranks = sharing.attempt(kind_, buffer.memory);
  if (!all_ok(ranks)) throw steps.error_of(ranks);
  std::vector<std::uintptr_t> pointers(static_cast<std::size_t>(exchange_.size()));
  for (int rank = 0; rank < exchange_.size(); ++rank) {
    pointers[static_cast<std::size_t>(rank)] = buffer.memory.pointer(rank, exchange_.rank());
  }
  return add(steps, std::move(buffer), bytes, pointers);
}

RegisteredBuffer GroupBuffers::register_buffer(const void* pointer, std::uint64_t bytes) {
  GroupSteps steps = steps_to("register a buffer");
  require_same_request(fmt::format("register {} bytes", bytes));
  const auto base = reinterpret_cast<std::uintptr_t>(pointer);
  EngineMemory memory;
  std::vector<MemoryPart> own;
  const auto blobs = steps.require_published([&]() -> Blob {
    require_registrable(base, bytes);
    memory = EngineMemory::look_at(device_, base, bytes, one_host_);
    Publication publication;
    publication.registered_id = registered_id(base, bytes, memory.identity);
    publication.offset = base - memory.identity.base;
    publication.bytes = memory.identity.bytes;
    publication.offer.kind = memory.kind;
    const auto known = offered_.find(memory.identity);
    publication.is_new = known == offered_.end() && publication.registered_id == 0;
    publication.number = known == offered_.end() ? next_number_++ : known->second.number;
    if (publication.is_new) own = memory.offer();
    return Publication::write(publication, own);
  });
  std::vector<Publication> published;
  steps.require([&] {
    for (const Blob& blob : blobs) published.push_back(Publication::read(blob));
  });

  const std::uint64_t id = published.front().registered_id;
  for (std::size_t rank = 1; rank < published.size(); ++rank) {
    if (published[rank].registered_id == id) continue;
    throw Error(Code::kInvalidArgument, "cannot " + steps.purpose(),
                fmt::format("to rank {} it is {}, to rank 0 {}", rank,
                            published[rank].registered_id == 0 ? "new" : "one that is registered",
                            id == 0 ? "new" : "another one that is registered"),
                "Release a buffer before its memory is registered together with other memory of the peers");
  }
  if (id != 0) {
    Buffer& again = buffers_.at(id);
    ++again.users;
    return handle_of(id, bytes);
  }

  open_peers(steps, published, own);
  Buffer buffer;
  buffer.identity = memory.identity;
  std::vector<std::uintptr_t> pointers;
  for (std::size_t rank = 0; rank < published.size(); ++rank) {
    const Publication& publication = published[rank];
    buffer.numbers.push_back(publication.number);
    if (static_cast<int>(rank) == exchange_.rank()) {
      pointers.push_back(base);
      Offered& offered = offered_[memory.identity];
      offered.number = publication.number;
      ++offered.users;
    } else {
      Opened& opened = opened_[rank].at(publication.number);
      ++opened.users;
      pointers.push_back(opened.mapping.pointer() + publication.offset);
    }
  }
  return add(steps, std::move(buffer), bytes, pointers);
}

void GroupBuffers::release(const RegisteredBuffer& buffer) {
  GroupSteps steps = steps_to("release a buffer");
  require_same_request(fmt::format("release buffer {}", buffer.id()));
  const auto found = buffers_.find(buffer.id());
  if (found == buffers_.end()) {
    throw Error(Code::kInvalidArgument, "cannot " + steps.purpose(), "it is not registered, or was released before");
  }
  if (--found->second.users > 0) return;
  COMMFUSE_DRIVER_NOEXCEPT(cuCtxSynchronize());
  workspace_.buffers().remove(buffer.id());
  Buffer gone = std::move(found->second);
  buffers_.erase(found);
  let_go(steps, std::move(gone));
}

void GroupBuffers::let_go(GroupSteps& steps, Buffer buffer) {
  buffer.memory.peers.clear();
  close_peers(buffer.numbers);
  if (!buffer.is_ours) {
    const auto offered = offered_.find(buffer.identity);
    if (--offered->second.users == 0) offered_.erase(offered);
  }
  try {
    steps.barrier();
  } catch (const ExchangeError&) {
    (void)buffer.memory.own.leave_to_peers();
    throw;
  }
}

void GroupBuffers::close_mappings() noexcept {
  for (auto& [id, buffer] : buffers_) buffer.memory.peers.clear();
  for (auto& of_rank : opened_) of_rank.clear();
}

bool GroupBuffers::leave_memory_to_peers() noexcept {
  bool kept = false;
  for (auto& [id, buffer] : buffers_) kept = buffer.memory.own.leave_to_peers() || kept;
  return kept;
}

void GroupBuffers::abandon() noexcept {
  for (auto& [id, buffer] : buffers_) buffer.memory.abandon();
  for (auto& of_rank : opened_) {
    for (auto& [number, opened] : of_rank) opened.mapping.abandon();
  }
}

GroupSteps GroupBuffers::steps_to(std::string_view purpose) const {
  return {exchange_, timeout_, fmt::format("{} in group '{}'", purpose, exchange_.group())};
}

void GroupBuffers::require_same_request(const std::string& request) const {
  agree(exchange_, "the request for a registered buffer", as_span(request), timeout_);
}

std::uint64_t GroupBuffers::registered_id(std::uintptr_t base, std::uint64_t bytes,
                                          const EngineMemory::Identity& identity) const {
  const RegisteredRange* other = workspace_.buffers().overlapping(base, bytes);
  if (other == nullptr) return 0;
  const Buffer& buffer = buffers_.at(other->id);
  if (!buffer.is_ours && buffer.identity != identity) {
    throw Error(Code::kInvalidArgument, fmt::format("cannot register {} bytes at {:#x}", bytes, base),
                "a buffer that was there is still registered, though its memory was freed",
                "Release buffers before their memory is freed");
  }
  if (other->base == base && other->bytes == bytes) return other->id;
  throw Error(Code::kInvalidArgument, fmt::format("cannot register {} bytes at {:#x}", bytes, base),
              fmt::format("they overlap {} registered bytes at {:#x}", other->bytes, other->base),
              "Release that buffer first, or register the tensors apart");
}

void GroupBuffers::open_peers(GroupSteps& steps, std::vector<Publication>& published, std::span<const MemoryPart> own) {
  std::vector<PeerMapping> fresh(published.size());
  const GroupSteps::Result result = steps.step([&] {
    std::vector<MemoryOffer> offers;
    offers.reserve(published.size());
    for (Publication& publication : published) offers.push_back(std::move(publication.offer));
    pass_descriptors(steps, own, offers);
    for (int rank = 0; rank < steps.size(); ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      const Publication& publication = published[i];
      if (rank == steps.rank()) continue;
      if (!publication.is_new) {
        if (opened_[i].contains(publication.number)) continue;
        throw Error(Code::kInternal, fmt::format("memory {} of rank {} is not known", publication.number, rank));
      }
      if (total_bytes(offers[i].parts) != publication.bytes || publication.offset > publication.bytes) {
        throw Error(Code::kInvalidInput, fmt::format("rank {} describes its memory wrongly", rank));
      }
      try {
        fresh[i] = PeerMapping(offers[i].kind, device_, offers[i].parts);
      } catch (const Error& error) {
        throw mapping_error(exchange_, rank, error);
      }
    }
  });
  if (!result.is_ok()) {
    fresh.clear();
    steps.barrier();
    throw steps.error_of(result.ranks);
  }
  for (std::size_t rank = 0; rank < published.size(); ++rank) {
    if (published[rank].is_new && static_cast<int>(rank) != steps.rank()) {
      opened_[rank][published[rank].number].mapping = std::move(fresh[rank]);
    }
  }
}

RegisteredBuffer GroupBuffers::add(GroupSteps& steps, Buffer buffer, std::uint64_t bytes,
                                   const std::vector<std::uintptr_t>& pointers) {
  RegisteredRange range;
  range.bytes = bytes;
  range.id = next_id_++;
  const GroupSteps::Result result = steps.step([&] {
    range.base = pointers[static_cast<std::size_t>(exchange_.rank())];
    std::copy(pointers.begin(), pointers.end(), range.peer_base.begin());
    workspace_.buffers().add(range, peer_offsets(range));
    buffer.pointers.reserve(pointers.size());
    for (const std::uintptr_t pointer : pointers) buffer.pointers.push_back(reinterpret_cast<void*>(pointer));
  });
  if (!result.is_ok()) {
    workspace_.buffers().remove(range.id);
    let_go(steps, std::move(buffer));
    throw steps.error_of(result.ranks);
  }
  buffer.users = 1;
  buffers_[range.id] = std::move(buffer);
  return handle_of(range.id, bytes);
}

RegisteredBuffer GroupBuffers::handle_of(std::uint64_t id, std::uint64_t bytes) const {
  return {id, bytes, buffers_.at(id).pointers};
}

void GroupBuffers::close_peers(const std::vector<std::uint64_t>& numbers) noexcept {
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    const auto opened = opened_[rank].find(numbers[rank]);
    if (opened != opened_[rank].end() && --opened->second.users == 0) opened_[rank].erase(opened);
  }
}

}  // namespace commfuse::runtime
