#include <algorithm>
#include <thread>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/meeting.hpp"

namespace commfuse::runtime {
namespace {

constexpr Timeout kFirstPause = Timeout(2);
constexpr Timeout kLongestPause = Timeout(100);

class Visit {
 public:
  Visit(const Meeting& meeting, Deadline deadline) : meeting_(meeting), deadline_(deadline), started_(Clock::now()) {}

  Company run() {
    Timeout pause = kFirstPause;
    for (;;) {
      Descriptor socket = meeting_.transport->knock(meeting_.key, meeting_.address, deadline_, closed_);
      if (socket.is_open()) {
        pause = kLongestPause;
        const int number = socket.get();
        const auto descriptors = meeting_.transport->carries_descriptors() ? Connection::Descriptors::kExpected
                                                                           : Connection::Descriptors::kRefused;
        Company company;
        company.connections.push_back(std::make_unique<Connection>(std::move(socket), descriptors));
        if (introduce(*company.connections.front(), company)) {
          meeting_.transport->note_connection(number);
          return company;
        }
      }
      if (Clock::now() >= deadline_) throw absence();
      std::this_thread::sleep_until(std::min(deadline_, Clock::now() + pause));
      pause = std::min(pause * 2, kLongestPause);
    }
  }

 private:
  /// False if this connection led nowhere and another may. Throws the failure of the group.
  bool introduce(Connection& connection, Company& company) {
    Key nonce = {};
    auto message = hear(connection, MessageKind::kChallenge);
    if (!message) return false;
    if (message->payload.size() != nonce.size()) return lead_nowhere("it sent a malformed challenge");
    std::copy(message->payload.begin(), message->payload.end(), nonce.begin());
    greet(connection, nonce);

    message = hear(connection, MessageKind::kWelcome);
    if (!message) return false;
    auto hosts = read_welcome(message->payload);
    if (!hosts || hosts->size() != static_cast<std::size_t>(meeting_.size))
      return lead_nowhere("it sent a malformed welcome");
    company.hosts = std::move(*hosts);
    if (meeting_.transport->carries_descriptors() && !take_links(connection, company)) return false;
    return true;
  }

  void greet(Connection& connection, const Key& first_nonce) {
    Hello hello = {meeting_.key, random_key(), meeting_.size, meeting_.host};
    Message message;
    message.kind = MessageKind::kHello;
    message.rank = meeting_.rank;
    message.patience = static_cast<std::uint32_t>(milliseconds_left(deadline_));
    message.payload = write_hello(hello);
    const auto* secret = meeting_.transport->secret();
    if (secret == nullptr) {
      connection.send(std::move(message));
      return;
    }
    const auto keys = connection_keys(*secret, first_nonce, hello.nonce);
    connection.set_send_key(keys.hello);
    connection.send(std::move(message));
    connection.set_send_key(keys.to_first);
    connection.set_receive_key(keys.from_first);
  }

  bool take_links(Connection& connection, Company& company) {
    company.links.resize(static_cast<std::size_t>(meeting_.size));
    for (int count = 1; count < meeting_.size; ++count) {
      const auto message = hear(connection, MessageKind::kLink);
      if (!message) return false;
      const auto index = static_cast<std::size_t>(message->rank);
      Descriptor link = connection.take_descriptor();
      if (message->rank >= meeting_.size || message->rank == meeting_.rank || !link.is_open() ||
          company.links[index].is_open()) {
        return lead_nowhere("it sent a malformed link");
      }
      company.links[index] = std::move(link);
    }
    return true;
  }

  std::optional<Message> hear(Connection& connection, MessageKind expected) {
    for (;;) {
      auto message = connection.take();
      if (message && message->kind == expected) return message;
      if (message && message->kind == MessageKind::kFailure) {
        if (const auto failure = read_failure(message->payload)) throw ExchangeError(*failure);
      }
      if (message && message->kind == MessageKind::kRefusal) {
        trouble_ = "it refused: " + ByteReader(message->payload).text(kMaxTextBytes);
        return std::nullopt;
      }
      if (message) {
        trouble_ = "it sent a message out of turn";
        return std::nullopt;
      }
      if (connection.is_lost()) {
        trouble_ = connection.loss();
        if (meeting_.transport->secret() != nullptr) trouble_ += " (does it have the same key?)";
        return std::nullopt;
      }
      if (Clock::now() >= deadline_) {
        trouble_ = expected == MessageKind::kChallenge ? "it took the connection and said nothing"
                                                       : "it went silent before everybody had come";
        say_goodbye(connection);
        return std::nullopt;
      }
      Connection* only = &connection;
      pump_all(std::span(&only, 1), deadline_);
    }
  }

  /// So that a first rank which is only late does not take this one for dead and looks for who is missing.
  void say_goodbye(Connection& connection) const {
    Message message;
    message.kind = MessageKind::kFailure;
    message.payload = write_failure(absence());
    connection.send(std::move(message));
  }

  bool lead_nowhere(std::string why) {
    trouble_ = std::move(why);
    return false;
  }

  [[nodiscard]] ExchangeError absence() const {
    return {Code::kTimeout,
            {0},
            "exchange '" + meeting_.group + "' could not be set up",
            "rank " + std::to_string(meeting_.rank) + " did not get through to rank 0 at " +
                meeting_.transport->place(meeting_.key, meeting_.address) + " within " +
                std::to_string(std::chrono::ceil<Timeout>(Clock::now() - started_).count()) +
                " ms: " + (trouble_.empty() ? closed_ : trouble_),
            "See whether rank 0 was started, with the same group name, size and key, and whether this place can be "
            "reached"};
  }

  const Meeting& meeting_;
  Deadline deadline_;
  Deadline started_;
  std::string closed_;   ///< why it could not connect, the last time
  std::string trouble_;  ///< what became of the last connection; tells more
};

}  // namespace

Company join_company(const Meeting& meeting, Deadline deadline) { return Visit(meeting, deadline).run(); }

}  // namespace commfuse::runtime
