// Reaching the first rank over TCP, where it was said to listen and nowhere else.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>

#include "runtime/exchange/star.hpp"
#include "runtime/exchange/transport.hpp"

namespace commfuse {
namespace runtime {
namespace {

constexpr Timeout kLongestConnect = std::chrono::seconds(2);

struct Endpoint {
  std::string host;
  std::string port;
};

Endpoint endpoint_of(const std::string& address) {
  const auto colon = address.rfind(':');
  Endpoint endpoint;
  if (colon != std::string::npos) endpoint = {address.substr(0, colon), address.substr(colon + 1)};
  const bool has_brackets = endpoint.host.starts_with('[') && endpoint.host.ends_with(']');
  if (has_brackets) endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  unsigned port = 0;
  const char* end = endpoint.port.data() + endpoint.port.size();
  const auto [stop, error] = std::from_chars(endpoint.port.data(), end, port);
  const bool is_bare_ipv6 = !has_brackets && endpoint.host.find(':') != std::string::npos;
  if (endpoint.host.empty() || endpoint.port.empty() || error != std::errc() || stop != end || port > 65535 ||
      is_bare_ipv6) {
    throw Error(Code::kInvalidArgument, "cannot use '" + address + "' as the address of an exchange",
                "it is not of the form host:port or [IPv6 address]:port");
  }
  return endpoint;
}

struct AddressList {
  explicit AddressList(const std::string& address) {
    const Endpoint endpoint = endpoint_of(address);
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    status = ::getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &first);
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  addrinfo* first = nullptr;
  int status = 0;
};

std::string numeric(const sockaddr* address, socklen_t length, bool with_port) {
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  if (::getnameinfo(address, length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  const std::string name = std::strchr(host, ':') != nullptr ? "[" + std::string(host) + "]" : host;
  return name + ":" + (with_port ? port : "0");
}

std::string own_address(int socket, bool with_port) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return numeric(reinterpret_cast<const sockaddr*>(&address), length, with_port);
}

void send_at_once(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

class TcpDoor final : public Door {
 public:
  TcpDoor(Descriptor socket, std::string host) : socket_(std::move(socket)), host_(std::move(host)) {}
  int socket() const noexcept override { return socket_.get(); }
  std::string address() const override {
    const std::string bound = own_address(socket_.get(), true);
    return host_ + bound.substr(bound.rfind(':'));
  }
  /// Anybody may knock; the hello shows who has the key.
  bool admits(int accepted) const override {
    send_at_once(accepted);
    return true;
  }

 private:
  Descriptor socket_;
  std::string host_;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(ExchangeKey secret, std::filesystem::path directory, std::string listen_address)
      : secret_(secret), directory_(std::move(directory)), listen_address_(std::move(listen_address)) {}

  /// The port may still be held by a group that gathers now or by the job before: tries again until the deadline.
  std::unique_ptr<Door> open_door(const Key&, const std::string& address, Deadline deadline) override {
    const std::string& own = address.empty() ? split_address_ : listen_address_;
    const AddressList found(own);
    if (found.status != 0) {
      throw Error(Code::kNotFound, "cannot find the host of '" + own + "'", ::gai_strerror(found.status),
                  "Give a numeric address of this host");
    }
    for (;;) {
      Descriptor socket(::socket(found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.is_open()) throw Error(Code::kIo, "cannot make a TCP socket", errno_text(errno));
      const int on = 1;
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (::bind(socket.get(), found.first->ai_addr, found.first->ai_addrlen) == 0 &&
          ::listen(socket.get(), kMaxExchangeSize) == 0) {
        if (!address.empty()) {
          split_address_ = own_address(socket.get(), false);
          // Where it listens may be an address for any; the others know the one that they were told.
          known_host_ = address.substr(0, address.rfind(':'));
        }
        return std::make_unique<TcpDoor>(std::move(socket), known_host_);
      }
      const int number = errno;
      if (number != EADDRINUSE || Clock::now() >= deadline) {
        throw Error(Code::kIo, "cannot listen at " + own, errno_text(number),
                    number == EADDRINUSE ? "Give the exchange a port of its own (not the launcher's)"
                                         : "Give an address of this host, or a separate listen address");
      }
      std::this_thread::sleep_for(Timeout(20));
    }
  }

  Descriptor knock(const Key&, const std::string& address, Deadline deadline, std::string& why) override {
    // Where hosts get their names when they start, rank 0's may not exist yet.
    const AddressList found(address);
    if (found.status != 0) why = std::string("its host is not found: ") + ::gai_strerror(found.status);
    for (const addrinfo* entry = found.first; entry != nullptr; entry = entry->ai_next) {
      Descriptor socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.is_open()) throw Error(Code::kIo, "cannot make a TCP socket", errno_text(errno));
      if (is_connected(socket.get(), *entry, deadline, why)) {
        send_at_once(socket.get());
        return socket;
      }
    }
    return {};
  }

  std::string place(const Key&, const std::string& address) const override { return address; }
  void note_connection(int socket) override {
    split_address_ = own_address(socket, false);
    known_host_ = split_address_.substr(0, split_address_.rfind(':'));
  }
  const ExchangeKey* secret() const noexcept override { return &secret_; }
  const std::filesystem::path& directory() const noexcept override { return directory_; }

 private:
  static bool is_connected(int socket, const addrinfo& entry, Deadline deadline, std::string& why) {
    int error = 0;
    if (::connect(socket, entry.ai_addr, entry.ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof(error);
      if (!wait_for(socket, POLLOUT, std::min(deadline, Clock::now() + kLongestConnect))) {
        why = "it does not answer";
        return false;
      }
      ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0 && is_own_mirror(socket)) error = ECONNREFUSED;
    if (error != 0) why = error == ECONNREFUSED ? "nobody listens there" : errno_text(error);
    return error == 0;
  }

  /// TCP on one host can connect a socket to itself, when the port asked for is free and is given to the asker.
  static bool is_own_mirror(int socket) {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
    return numeric(reinterpret_cast<const sockaddr*>(&address), length, true) == own_address(socket, true);
  }

  ExchangeKey secret_;
  std::filesystem::path directory_;
  std::string listen_address_;
  std::string split_address_;  ///< where this rank is reached by the others, with port 0: any free one
  std::string known_host_;     ///< that address as the others know it
};

}  // namespace
}  // namespace runtime

std::unique_ptr<Exchange> make_tcp_exchange(const TcpExchangeOptions& options, Timeout timeout) {
  const runtime::Deadline deadline = runtime::deadline_after(timeout);
  if (runtime::is_equal(options.key.bytes(), ExchangeKey().bytes())) {
    throw Error(Code::kInvalidArgument, "cannot set up exchange '" + options.group + "'", "it has no key",
                "Make one from a shared secret: ExchangeKey::from_environment");
  }
  runtime::Meeting meeting;
  meeting.group = options.group;
  meeting.key = runtime::key_of_group(options.group);
  meeting.rank = options.rank;
  meeting.size = options.size;
  meeting.host = options.host ? *options.host : this_host();
  meeting.address = options.address;
  runtime::check_meeting(meeting);
  const std::string& listen = options.listen_address.empty() ? options.address : options.listen_address;
  (void)runtime::endpoint_of(options.address);
  (void)runtime::endpoint_of(listen);
  meeting.transport = std::make_shared<runtime::TcpTransport>(options.key, options.directory, listen);
  return runtime::make_star_exchange(std::move(meeting), nullptr, deadline);
}

}  // namespace commfuse
