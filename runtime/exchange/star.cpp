#include "runtime/exchange/star.hpp"

#include <algorithm>
#include <functional>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/split.hpp"

namespace commfuse::runtime {
namespace {

constexpr Timeout kFailureTime = Timeout(200);

class StarExchange : public Exchange {
 public:
  StarExchange(Meeting meeting, Company company)
      : Exchange(meeting.group, meeting.rank, meeting.size, company.hosts),
        meeting_(std::move(meeting)),
        connections_(std::move(company.connections)) {
    if (meeting_.transport->carries_descriptors()) {
      routes_ = make_link_routes(meeting_.group, meeting_.rank, std::move(company.links));
    }
  }

  void finish_set_up(Deadline deadline) {
    barrier(std::max(left(deadline), Timeout(1)));
    if (!routes_) routes_ = make_local_routes(*this, meeting_.transport->directory(), deadline);
  }

 protected:
  [[nodiscard]] std::string what() const { return "exchange '" + group() + "' failed"; }
  [[nodiscard]] static std::string name_of(int rank) { return "rank " + std::to_string(rank); }
  [[nodiscard]] Connection* connection(int index) { return connections_[static_cast<std::size_t>(index)].get(); }

  /// Gives a failure a short while to leave; whoever does not read then finds the connection closed.
  void flush_failure(std::span<Connection* const> connections, Deadline deadline) noexcept {
    const Deadline until = std::max(Clock::now() + kFailureTime / 4, std::min(deadline, Clock::now() + kFailureTime));
    try {
      for (;;) {
        std::vector<Connection*> unfinished;
        for (Connection* connection : connections) {
          if (connection != nullptr && !connection->has_send_failed() && !connection->is_flushed()) {
            unfinished.push_back(connection);
          }
        }
        if (unfinished.empty() || Clock::now() >= until) return;
        pump_all(unfinished, until);
      }
    } catch (const std::exception&) {
      // The failure that is being told is the one that matters.
    }
  }

 private:
  Descriptor pass_descriptor(int from, int to, int descriptor, Deadline deadline) override {
    return routes_->pass(from, to, descriptor, deadline);
  }

  Invitation prepare_split(std::span<const int> members, Deadline deadline) override {
    const std::string nonce = to_hex(random_key());
    std::shared_ptr<Door> door;
    if (members.size() > 1)
      door = meeting_.transport->open_door(key_of_group(group_name(group(), members), nonce), "", deadline);
    ByteWriter writer;
    writer.text(nonce, 64);
    writer.text(door ? door->address() : "", kMaxTextBytes);
    return {writer.take(), door};
  }

  std::unique_ptr<Exchange> join_split(std::span<const int> members, Invitation invitation,
                                       Deadline deadline) override {
    ByteReader reader(invitation.blob);
    const std::string nonce = reader.text(64);
    Meeting child;
    child.transport = meeting_.transport;
    child.group = group_name(group(), members);
    child.key = key_of_group(child.group, nonce);
    child.rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    child.size = static_cast<int>(members.size());
    child.host = meeting_.host;
    child.address = reader.text(kMaxTextBytes);
    return make_star_exchange(std::move(child), std::static_pointer_cast<Door>(std::move(invitation.kept)), deadline);
  }

 protected:
  Meeting meeting_;

 private:
  std::vector<std::unique_ptr<Connection>> connections_;
  std::unique_ptr<DescriptorRoutes> routes_;
};

class FirstRank final : public StarExchange {
 public:
  using StarExchange::StarExchange;

  ~FirstRank() override {
    // What the others sent and nobody read would make the kernel reset a TCP connection, and with it what they were
    // told.
    try {
      for (int rank = 1; rank < size(); ++rank) connection(rank)->pump();
    } catch (const std::exception&) {
      // Out of memory: a reset, then.
    }
  }

 private:
  std::vector<Blob> gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) override {
    Collecting state(size(), Clock::now(), deadline);
    state.blobs[0].assign(blob.begin(), blob.end());
    while (state.missing > 0) {
      for (int rank = 1; rank < size(); ++rank) hear(rank, operation, state);
      if (state.missing == 0) break;
      if (Clock::now() >= state.telling) throw_to_all(absence(state), deadline);
      pump_all(all(), state.telling);
    }
    answer(operation, state.blobs, deadline);
    return std::move(state.blobs);
  }

  struct Collecting {
    Collecting(int size, Deadline now, Deadline deadline)
        : blobs(static_cast<std::size_t>(size)),
          has_come(static_cast<std::size_t>(size), false),
          missing(size - 1),
          started(now),
          telling(deadline - telling_time(left(deadline))) {}
    std::vector<Blob> blobs;
    std::vector<bool> has_come;
    int missing;
    Deadline started;
    Deadline telling;
  };

  void hear(int rank, Operation operation, Collecting& state) {
    const auto index = static_cast<std::size_t>(rank);
    auto message = connection(rank)->take();
    if (!message) {
      if (connection(rank)->is_lost())
        throw_to_all({Code::kIo, {rank}, what(), name_of(rank) + ": " + connection(rank)->loss(), ""}, telling_end());
      return;
    }
    if (message->kind == MessageKind::kFailure) {
      const auto failure = read_failure(message->payload);
      if (failure) {
        throw_to_all({failure->code(), {rank}, what(), failure->message() + ": " + failure->cause(), failure->remedy()},
                     telling_end());
      }
    }
    if (message->kind != MessageKind::kBlob || message->rank != rank || state.has_come[index]) {
      throw_to_all({Code::kInvalidInput, {rank}, what(), name_of(rank) + " sent a message out of turn", ""},
                   telling_end());
    }
    if (message->operation != static_cast<std::uint8_t>(operation)) {
      throw_to_all({Code::kMismatch,
                    {rank},
                    what(),
                    name_of(rank) + " made another call than rank 0",
                    "Make the same calls on every rank"},
                   telling_end());
    }
    const Timeout patience(message->patience);
    state.telling = std::min(state.telling, Clock::now() + patience - telling_time(patience));
    state.blobs[index] = std::move(message->payload);
    state.has_come[index] = true;
    --state.missing;
  }

  /// Sends all blobs to all ranks, each as fast as it reads: one that has stopped does not hold up the others.
  void answer(Operation operation, const std::vector<Blob>& blobs, Deadline deadline) {
    std::vector<std::size_t> next(static_cast<std::size_t>(size()), 0);
    for (;;) {
      std::vector<Connection*> unfinished;
      std::vector<int> silent;
      for (int rank = 1; rank < size(); ++rank) {
        auto& sent = next[static_cast<std::size_t>(rank)];
        for (; connection(rank)->is_flushed() && sent < blobs.size() && !connection(rank)->has_send_failed(); ++sent) {
          Message message;
          message.kind = MessageKind::kBlob;
          message.operation = static_cast<std::uint8_t>(operation);
          message.rank = static_cast<int>(sent);
          message.payload = blobs[sent];
          connection(rank)->send(std::move(message));
        }
        if (connection(rank)->has_send_failed()) {
          throw_to_all({Code::kIo, {rank}, what(), name_of(rank) + ": its connection broke while it was answered", ""},
                       telling_end());
        }
        if (connection(rank)->is_flushed()) continue;
        unfinished.push_back(connection(rank));
        silent.push_back(rank);
      }
      if (unfinished.empty()) return;
      if (Clock::now() >= deadline) {
        throw_to_all({Code::kTimeout, silent, what(), rank_list(silent) + " stopped reading within the timeout", ""},
                     deadline);
      }
      pump_all(unfinished, deadline);
    }
  }

  [[nodiscard]] ExchangeError absence(const Collecting& state) const {
    std::vector<int> missing;
    for (int rank = 1; rank < size(); ++rank) {
      if (!state.has_come[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    return {Code::kTimeout, missing, what(),
            rank_list(missing) + " did not come within " +
                std::to_string(std::chrono::ceil<Timeout>(Clock::now() - state.started).count()) + " ms",
            "See whether they still run; give a longer timeout if they are only late"};
  }

  [[nodiscard]] static Deadline telling_end() { return Clock::now() + kFailureTime; }

  [[nodiscard]] std::vector<Connection*> all() {
    std::vector<Connection*> connections;
    for (int rank = 1; rank < size(); ++rank) connections.push_back(connection(rank));
    return connections;
  }

  [[noreturn]] void throw_to_all(const ExchangeError& error, Deadline deadline) {
    announce_failure(error, deadline);
    throw ExchangeError(error);
  }

  void announce_failure(const ExchangeError& failure, Deadline deadline) noexcept override {
    try {
      Message message;
      message.kind = MessageKind::kFailure;
      message.payload = write_failure(failure);
      for (Connection* connection : all()) connection->send(message);
      flush_failure(all(), deadline);
    } catch (const std::exception&) {
      // Out of memory: the others find the connections closed.
    }
  }
};

class OtherRank final : public StarExchange {
 public:
  using StarExchange::StarExchange;

 private:
  std::vector<Blob> gather(Operation operation, std::span<const std::byte> blob, Deadline deadline) override {
    const Deadline started = Clock::now();
    Connection& first = *connection(0);
    // A failure of an earlier time may be waiting; read first, since after a reset it would be gone.
    first.pump();
    Message message;
    message.kind = MessageKind::kBlob;
    message.operation = static_cast<std::uint8_t>(operation);
    message.rank = rank();
    message.patience = static_cast<std::uint32_t>(milliseconds_left(deadline));
    message.payload.assign(blob.begin(), blob.end());
    first.send(std::move(message));

    std::vector<Blob> blobs;
    while (blobs.size() < static_cast<std::size_t>(size())) {
      auto answer = first.take();
      if (answer) {
        accept(std::move(*answer), operation, blobs);
      } else if (first.is_lost()) {
        throw ExchangeError(Code::kIo, {0}, what(), "rank 0: " + first.loss(), "");
      } else if (Clock::now() >= deadline) {
        const ExchangeError silence(Code::kTimeout, {0}, what(),
                                    "rank 0 did not come within " +
                                        std::to_string(std::chrono::ceil<Timeout>(Clock::now() - started).count()) +
                                        " ms",
                                    "See whether it still runs; give a longer timeout if it is only late");
        announce_failure(silence, deadline);
        throw ExchangeError(silence);
      } else {
        Connection* only = &first;
        pump_all(std::span(&only, 1), deadline);
      }
    }
    return blobs;
  }

  void accept(Message message, Operation operation, std::vector<Blob>& blobs) {
    if (message.kind == MessageKind::kFailure) {
      if (const auto failure = read_failure(message.payload)) throw ExchangeError(*failure);
    }
    if (message.kind != MessageKind::kBlob || message.operation != static_cast<std::uint8_t>(operation) ||
        message.rank != static_cast<int>(blobs.size())) {
      throw ExchangeError(Code::kInvalidInput, {0}, what(), "rank 0 sent a message out of turn", "");
    }
    blobs.push_back(std::move(message.payload));
  }

  void announce_failure(const ExchangeError& failure, Deadline deadline) noexcept override {
    try {
      Message message;
      message.kind = MessageKind::kFailure;
      message.payload = write_failure(failure);
      Connection* only = connection(0);
      only->send(std::move(message));
      flush_failure(std::span(&only, 1), deadline);
    } catch (const std::exception&) {
      // Out of memory: the first rank finds the connection closed.
    }
  }
};

}  // namespace

std::unique_ptr<Exchange> make_star_exchange(Meeting meeting, std::shared_ptr<Door> door, Deadline deadline) {
  check_meeting(meeting);
  const bool is_first = meeting.rank == 0;
  Company company;
  if (meeting.size == 1) {
    company.connections.resize(1);
    company.hosts = {meeting.host};
    company.links.resize(1);
  } else if (is_first) {
    if (!door) door = meeting.transport->open_door(meeting.key, meeting.address, deadline);
    company = receive_company(meeting, std::move(door), deadline);
  } else {
    company = join_company(meeting, deadline);
  }
  std::unique_ptr<StarExchange> exchange;
  if (is_first) {
    exchange = std::make_unique<FirstRank>(std::move(meeting), std::move(company));
  } else {
    exchange = std::make_unique<OtherRank>(std::move(meeting), std::move(company));
  }
  exchange->finish_set_up(deadline);
  return exchange;
}

}  // namespace commfuse::runtime
