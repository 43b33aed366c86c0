// Ranks that are threads of one process. Their state, under one mutex:
//
//   collecting(round, arrived)   a call's blobs come in; the last one publishes the result and starts the next round
//   failed                       for good; every waiting and every later call throws the failure
//
// It cannot deadlock: there is one mutex and nothing is called under it; a waiting thread leaves with the result of its
// round, with the failure, or at its deadline, when it sets the failure and wakes everybody. So the earliest deadline
// ends the call of all.
#include <fcntl.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "commfuse/exchange.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/socket.hpp"
#include "runtime/exchange/split.hpp"

namespace commfuse {
namespace {

using runtime::Deadline;

struct Room {
  Room(std::string name, int ranks)
      : group(std::move(name)),
        size(ranks),
        blobs(static_cast<std::size_t>(ranks)),
        operations(static_cast<std::size_t>(ranks), 0),
        gone(static_cast<std::size_t>(ranks), false) {}

  const std::string group;
  const int size;

  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t round = 0;
  int arrived = 0;
  std::vector<Blob> blobs;
  std::vector<std::uint8_t> operations;  ///< of this round; 0: not arrived
  std::shared_ptr<const std::vector<Blob>> result;
  std::vector<bool> gone;
  std::optional<ExchangeError> failure;
  std::map<std::pair<int, int>, std::deque<Descriptor>> passing;

  void fail(const ExchangeError& error) {
    if (!failure) failure = error;
    changed.notify_all();
  }
  [[nodiscard]] ExchangeError departure(int rank) const {
    return {Code::kIo, {rank}, "exchange '" + group + "' failed", "rank " + std::to_string(rank) + " has left", ""};
  }
};

/// Invitations hold rooms of split groups by number, because a blob cannot hold a pointer that owns.
class Foyer {
 public:
  std::uint64_t add(std::shared_ptr<Room> room) {
    const std::lock_guard lock(mutex_);
    rooms_[next_] = std::move(room);
    return next_++;
  }
  std::shared_ptr<Room> find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = rooms_.find(number);
    return found == rooms_.end() ? nullptr : found->second.lock();
  }
  void remove(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    rooms_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::weak_ptr<Room>> rooms_;
};

class ThreadExchange final : public Exchange {
 public:
  ThreadExchange(std::shared_ptr<Room> room, std::shared_ptr<Foyer> foyer, int rank, HostIdentity host)
      : Exchange(room->group, rank, room->size, std::vector<HostIdentity>(static_cast<std::size_t>(room->size), host)),
        room_(std::move(room)),
        foyer_(std::move(foyer)) {}

  ~ThreadExchange() override {
    const std::lock_guard lock(room_->mutex);
    room_->gone[static_cast<std::size_t>(rank())] = true;
    room_->changed.notify_all();
  }

 private:
  std::vector<Blob> gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) override {
    Room& room = *room_;
    std::unique_lock lock(room.mutex);
    if (room.failure) throw ExchangeError(*room.failure);
    const std::uint64_t round = room.round;
    room.blobs[static_cast<std::size_t>(rank())].assign(blob.begin(), blob.end());
    room.operations[static_cast<std::size_t>(rank())] = static_cast<std::uint8_t>(operation);
    if (++room.arrived == room.size) {
      finish_round();
    } else {
      const auto is_over = [&] { return room.round != round || room.failure || absent_rank() >= 0; };
      if (!room.changed.wait_until(lock, deadline, is_over)) room.fail(absence());
      if (room.round == round && !room.failure) room.fail(room.departure(absent_rank()));
    }
    if (room.round == round) throw ExchangeError(*room.failure);
    const auto result = room.result;
    lock.unlock();
    return *result;
  }

  void finish_round() {
    Room& room = *room_;
    for (int rank = 1; rank < room.size; ++rank) {
      if (room.operations[static_cast<std::size_t>(rank)] != room.operations[0]) {
        room.fail({Code::kMismatch,
                   {rank},
                   "exchange '" + room.group + "' failed",
                   "rank " + std::to_string(rank) + " made another call than rank 0",
                   "Make the same calls on every rank"});
        return;
      }
    }
    room.result = std::make_shared<const std::vector<Blob>>(std::move(room.blobs));
    room.blobs.assign(static_cast<std::size_t>(room.size), {});
    room.operations.assign(static_cast<std::size_t>(room.size), 0);
    room.arrived = 0;
    ++room.round;
    room.changed.notify_all();
  }

  /// A rank that left without having arrived in this round, or -1.
  [[nodiscard]] int absent_rank() const {
    for (int rank = 0; rank < room_->size; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      if (room_->gone[index] && room_->operations[index] == 0) return rank;
    }
    return -1;
  }
  [[nodiscard]] ExchangeError absence() const {
    std::vector<int> missing;
    for (int rank = 0; rank < room_->size; ++rank) {
      if (room_->operations[static_cast<std::size_t>(rank)] == 0) missing.push_back(rank);
    }
    return {Code::kTimeout, missing, "exchange '" + room_->group + "' failed",
            runtime::rank_list(missing) + " did not come within the timeout", ""};
  }

  Descriptor pass_descriptor(int from, int to, int descriptor, Deadline deadline) override {
    Room& room = *room_;
    std::unique_lock lock(room.mutex);
    auto& queue = room.passing[{from, to}];
    if (rank() == from) {
      Descriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
      if (!copy.is_open()) throw Error(Code::kIo, "cannot duplicate a descriptor", runtime::errno_text(errno));
      queue.push_back(std::move(copy));
      room.changed.notify_all();
      return {};
    }
    const auto is_over = [&] { return !queue.empty() || room.failure || room.gone[static_cast<std::size_t>(from)]; };
    if (!room.changed.wait_until(lock, deadline, is_over)) {
      throw ExchangeError(Code::kTimeout, {from}, "exchange '" + room.group + "' failed",
                          "rank " + std::to_string(from) + " passed no descriptor within the timeout", "");
    }
    if (queue.empty()) throw ExchangeError(room.failure ? *room.failure : room.departure(from));
    Descriptor received = std::move(queue.front());
    queue.pop_front();
    return received;
  }

  void announce_failure(const ExchangeError& failure, Deadline) noexcept override {
    const std::lock_guard lock(room_->mutex);
    room_->fail(failure);
  }

  Invitation prepare_split(std::span<const int> members, Deadline) override {
    auto room = std::make_shared<Room>(group_name(group(), members), static_cast<int>(members.size()));
    const std::uint64_t number = foyer_->add(room);
    runtime::ByteWriter writer;
    writer.integer(number);
    // The number goes with the last who holds the room, whether or not everybody came.
    std::shared_ptr<void> kept(room.get(), [room, foyer = foyer_, number](void*) { foyer->remove(number); });
    return {writer.take(), std::move(kept)};
  }

  std::unique_ptr<Exchange> join_split(std::span<const int> members, Invitation invitation,
                                       Deadline deadline) override {
    const auto room = foyer_->find(runtime::ByteReader(invitation.blob).integer<std::uint64_t>());
    if (!room) {
      throw ExchangeError(Code::kTimeout, {members.front()}, "cannot split exchange '" + group() + "'",
                          "rank " + std::to_string(members.front()) + " has left", "");
    }
    const int own = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    auto child = std::make_unique<ThreadExchange>(room, foyer_, own, host(rank()));
    // The first member keeps the room findable until all have come.
    child->barrier(std::max(runtime::left(deadline), Timeout(1)));
    return child;
  }

  std::shared_ptr<Room> room_;
  std::shared_ptr<Foyer> foyer_;
};

}  // namespace

std::vector<std::unique_ptr<Exchange>> make_thread_exchanges(int size) {
  if (size < 1 || size > kMaxExchangeSize) {
    throw Error(Code::kInvalidArgument, "cannot make an exchange of " + std::to_string(size) + " threads",
                "a group has 1 to " + std::to_string(kMaxExchangeSize) + " ranks");
  }
  const auto room = std::make_shared<Room>("threads", size);
  const auto foyer = std::make_shared<Foyer>();
  const HostIdentity host = this_host();
  std::vector<std::unique_ptr<Exchange>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(std::make_unique<ThreadExchange>(room, foyer, rank, host));
  return ends;
}

}  // namespace commfuse
