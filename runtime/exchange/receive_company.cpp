#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <list>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/meeting.hpp"

namespace commfuse::runtime {
namespace {

constexpr Timeout kNewcomerPatience = std::chrono::seconds(5);
constexpr std::size_t kMaxStrangers = 64;
constexpr Timeout kLongestLinger = Timeout(500);

/// Somebody who has connected and not yet proved to be a member.
struct Newcomer {
  Connection connection;
  Key nonce;
  Deadline until;
};

class Reception {
 public:
  Reception(const Meeting& meeting, std::shared_ptr<Door> door, Deadline deadline)
      : meeting_(meeting),
        door_(std::move(door)),
        deadline_(deadline),
        telling_(deadline - telling_time(left(deadline))),
        started_(Clock::now()) {
    company_.connections.resize(static_cast<std::size_t>(meeting.size));
    company_.hosts.resize(static_cast<std::size_t>(meeting.size));
    company_.hosts[0] = meeting.host;
  }

  Company run() {
    while (!missing().empty() || failure_) {
      if (Clock::now() >= telling_) break;
      wait();
      hear_members();
      hear_newcomers();
      if (failure_ && missing().empty()) break;
    }
    if (!failure_ && !missing().empty()) fail(absence());
    door_.reset();
    if (!failure_) welcome();
    if (failure_) {
      flush(std::min(deadline_, Clock::now() + kLongestLinger));
      throw ExchangeError(*failure_);
    }
    return std::move(company_);
  }

 private:
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < meeting_.size; ++rank) {
      if (!company_.connections[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  void wait() {
    std::vector<Connection*> connections;
    Deadline until = telling_;
    for (auto& connection : company_.connections) connections.push_back(connection.get());
    for (auto& newcomer : newcomers_) {
      connections.push_back(&newcomer.connection);
      until = std::min(until, newcomer.until);
    }
    pollfd door = {door_->socket(), POLLIN, 0};
    pump_all(connections, until, std::span(&door, 1));
    if (door.revents != 0) accept_newcomers();
  }

  void accept_newcomers() {
    // A bounded number at a time, so that a flood of strangers cannot keep this rank from hearing those inside.
    for (std::size_t count = 0; count < kMaxStrangers; ++count) {
      Descriptor socket(::accept4(door_->socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.is_open()) {
        if (errno == EMFILE || errno == ENFILE) {
          fail({Code::kIo, {0}, what(), "rank 0 cannot accept: " + errno_text(errno), "Raise the limit of open files"});
        }
        return;
      }
      if (!door_->admits(socket.get())) {
        ++strangers_;
        continue;
      }
      if (newcomers_.size() >= kMaxStrangers + static_cast<std::size_t>(meeting_.size)) dismiss(newcomers_.begin());
      newcomers_.push_back({Connection(std::move(socket)), random_key(), Clock::now() + kNewcomerPatience});
      Newcomer& newcomer = newcomers_.back();
      newcomer.connection.set_limit(kMaxStrangerPayload);
      Message challenge;
      challenge.kind = MessageKind::kChallenge;
      challenge.payload.assign(newcomer.nonce.begin(), newcomer.nonce.end());
      newcomer.connection.send(std::move(challenge));
      if (const auto* secret = meeting_.transport->secret()) {
        newcomer.connection.set_receive_key(hello_key(*secret, newcomer.nonce));
      }
    }
  }

  std::list<Newcomer>::iterator dismiss(std::list<Newcomer>::iterator newcomer) {
    ++strangers_;
    if (!newcomer->connection.loss().empty()) last_stranger_ = newcomer->connection.loss();
    return newcomers_.erase(newcomer);
  }

  void hear_newcomers() {
    for (auto newcomer = newcomers_.begin(); newcomer != newcomers_.end();) {
      const auto message = newcomer->connection.take();
      if (!message && !newcomer->connection.is_lost() && Clock::now() < newcomer->until) {
        ++newcomer;
        continue;
      }
      const auto hello = message && message->kind == MessageKind::kHello ? read_hello(message->payload) : std::nullopt;
      if (hello && hello->group == meeting_.key) {
        admit(std::move(*newcomer), *hello, *message);
        newcomer = newcomers_.erase(newcomer);
      } else {
        if (hello) refuse(newcomer->connection);
        newcomer = dismiss(newcomer);
      }
    }
  }

  void refuse(Connection& connection) {
    Message refusal;
    refusal.kind = MessageKind::kRefusal;
    ByteWriter writer;
    writer.text("here gathers exchange '" + meeting_.group + "'", kMaxTextBytes);
    refusal.payload = writer.take();
    connection.send(std::move(refusal));
  }

  void admit(Newcomer newcomer, const Hello& hello, const Message& message) {
    Connection& connection = newcomer.connection;
    if (const auto* secret = meeting_.transport->secret()) {
      const auto keys = connection_keys(*secret, newcomer.nonce, hello.nonce);
      connection.set_receive_key(keys.to_first);
      connection.set_send_key(keys.from_first);
    }
    connection.set_limit(kMaxBlobBytes);
    const int rank = message.rank;
    const std::string name = "rank " + std::to_string(rank);
    const auto index = static_cast<std::size_t>(rank);
    if (hello.size != meeting_.size) {
      fail({Code::kMismatch,
            {rank},
            what(),
            name + " was started for " + std::to_string(hello.size) + " ranks, rank 0 for " +
                std::to_string(meeting_.size),
            "Start every rank with the same size"});
    } else if (rank >= meeting_.size) {
      fail({Code::kMismatch, {rank}, what(), name + " is none of a group of " + std::to_string(meeting_.size), ""});
    } else if (rank == 0 || company_.connections[index]) {
      const HostIdentity& first = company_.hosts[index];
      fail({Code::kMismatch,
            {rank},
            what(),
            "two processes come as " + name + " (" + std::to_string(first.process) + " on " + first.name + " and " +
                std::to_string(hello.host.process) + " on " + hello.host.name + ")",
            "Give every process of the group its own rank"});
    } else {
      const Timeout patience(message.patience);
      const Deadline theirs = Clock::now() + patience - telling_time(patience);
      if (!failure_) telling_ = std::min(telling_, theirs);
      company_.hosts[index] = hello.host;
      company_.connections[index] = std::make_unique<Connection>(std::move(connection));
      if (failure_) send_failure(*company_.connections[index]);
      return;
    }
    send_failure(connection);
  }

  void hear_members() {
    for (int rank = 1; rank < meeting_.size; ++rank) {
      auto& connection = company_.connections[static_cast<std::size_t>(rank)];
      if (!connection || failure_) continue;
      const auto message = connection->take();
      if (message && message->kind == MessageKind::kFailure) {
        fail(absence());
      } else if (message) {
        fail({Code::kInvalidInput,
              {rank},
              what(),
              "rank " + std::to_string(rank) + " spoke before it was welcomed",
              ""});
      } else if (connection->is_lost()) {
        fail({Code::kIo,
              {rank},
              what(),
              "rank " + std::to_string(rank) + " was there and went: " + connection->loss(),
              ""});
      }
    }
  }

  void welcome() {
    Message message;
    message.kind = MessageKind::kWelcome;
    message.payload = write_welcome(company_.hosts);
    for (auto& connection : company_.connections) {
      if (connection) connection->send(message);
    }
    flush(telling_);
    if (!meeting_.transport->carries_descriptors()) return;
    try {
      give_links(company_, meeting_, telling_);
    } catch (const ExchangeError& error) {
      fail(error);
    }
  }

  void flush(Deadline until) {
    std::vector<Connection*> connections;
    for (auto& connection : company_.connections) connections.push_back(connection.get());
    const auto is_done = [](const Connection* connection) { return !connection || connection->is_flushed(); };
    while (!std::all_of(connections.begin(), connections.end(), is_done) && Clock::now() < until) {
      std::vector<Connection*> unfinished;
      std::copy_if(connections.begin(), connections.end(), std::back_inserter(unfinished), std::not_fn(is_done));
      pump_all(unfinished, until);
    }
  }

  [[nodiscard]] std::string what() const { return "exchange '" + meeting_.group + "' could not be set up"; }

  [[nodiscard]] ExchangeError absence() const {
    const auto ranks = missing();
    std::string cause = rank_list(ranks) + " did not come to " +
                        meeting_.transport->place(meeting_.key, door_->address()) + " within " +
                        std::to_string(std::chrono::ceil<Timeout>(Clock::now() - started_).count()) + " ms";
    if (strangers_ > 0) {
      cause += "; " + std::to_string(strangers_) + " strangers were turned away";
      if (!last_stranger_.empty()) cause += " (the last: " + last_stranger_ + ")";
    }
    return {Code::kTimeout, ranks, what(), cause,
            "See whether they were started, with the same group name, size and key, and can reach this place"};
  }

  /// The first failure counts. Who comes afterwards is told too, for a moment: it would wait for its whole timeout.
  void fail(const ExchangeError& error) {
    if (failure_) return;
    failure_ = error;
    telling_ = std::min(telling_, Clock::now() + kLongestLinger);
    for (auto& connection : company_.connections) {
      if (connection) send_failure(*connection);
    }
  }
  void send_failure(Connection& connection) {
    Message message;
    message.kind = MessageKind::kFailure;
    message.payload = write_failure(*failure_);
    connection.send(std::move(message));
  }

  const Meeting& meeting_;
  std::shared_ptr<Door> door_;
  Deadline deadline_;
  Deadline telling_;  ///< when to give up, early enough to tell everybody
  Deadline started_;
  Company company_;
  std::list<Newcomer> newcomers_;
  std::size_t strangers_ = 0;
  std::string last_stranger_;
  std::optional<ExchangeError> failure_;
};

}  // namespace

Company receive_company(const Meeting& meeting, std::shared_ptr<Door> door, Deadline deadline) {
  return Reception(meeting, std::move(door), deadline).run();
}

}  // namespace commfuse::runtime
