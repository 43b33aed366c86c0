#include "runtime/exchange/unix_transport.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/exchange/keys.hpp"
#include "runtime/exchange/private_directory.hpp"
#include "runtime/exchange/star.hpp"

namespace commfuse {
namespace runtime {
namespace {

std::string name_of(const Key& group) { return to_hex(std::span(group).first(16)); }

Descriptor new_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) throw Error(Code::kIo, "cannot make a Unix socket", errno_text(errno));
  return socket;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) throw Error(Code::kInternal, "socket path '" + path + "' is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool is_own_user(int socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

class UnixDoor final : public Door {
 public:
  UnixDoor(std::shared_ptr<const PrivateDirectory> directory, const Key& group, Deadline deadline)
      : directory_(std::move(directory)), name_(*directory_, name_of(group), deadline), socket_(new_socket()) {
    const std::string file = name_of(group) + ".sock";
    const sockaddr_un address = address_of(directory_->short_path(file));
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(socket_.get(), kMaxExchangeSize) != 0) {
      throw Error(Code::kIo, "cannot listen at '" + (directory_->path() / file).string() + "'", errno_text(errno));
    }
  }

  int socket() const noexcept override { return socket_.get(); }
  std::string address() const override { return ""; }
  bool admits(int accepted) const override { return is_own_user(accepted); }

 private:
  std::shared_ptr<const PrivateDirectory> directory_;
  HeldName name_;
  Descriptor socket_;
};

class UnixTransport final : public Transport {
 public:
  explicit UnixTransport(const std::filesystem::path& directory)
      : directory_(std::make_shared<const PrivateDirectory>(directory)) {}

  std::unique_ptr<Door> open_door(const Key& group, const std::string&, Deadline deadline) override {
    sweep_leftovers(*directory_);
    return std::make_unique<UnixDoor>(directory_, group, deadline);
  }

  Descriptor knock(const Key& group, const std::string&, Deadline, std::string& why) override {
    Descriptor socket = new_socket();
    const sockaddr_un address = address_of(directory_->short_path(name_of(group) + ".sock"));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      why = errno == ENOENT || errno == ECONNREFUSED ? "it has not opened it" : errno_text(errno);
      return {};
    }
    if (!is_own_user(socket.get())) {
      why = "another user listens there";
      return {};
    }
    return socket;
  }

  std::string place(const Key& group, const std::string&) const override {
    return "'" + (directory_->path() / (name_of(group) + ".sock")).string() + "'";
  }
  bool carries_descriptors() const noexcept override { return true; }
  const std::filesystem::path& directory() const noexcept override { return directory_->path(); }

 private:
  std::shared_ptr<const PrivateDirectory> directory_;
};

}  // namespace

std::shared_ptr<Transport> make_unix_transport(const std::filesystem::path& directory) {
  return std::make_shared<UnixTransport>(directory.empty() ? default_exchange_directory() : directory);
}

}  // namespace runtime

std::unique_ptr<Exchange> make_unix_exchange(const UnixExchangeOptions& options, Timeout timeout) {
  const runtime::Deadline deadline = runtime::deadline_after(timeout);
  runtime::Meeting meeting;
  meeting.group = options.group;
  meeting.key = runtime::key_of_group(options.group);
  meeting.rank = options.rank;
  meeting.size = options.size;
  meeting.host = options.host ? *options.host : this_host();
  runtime::check_meeting(meeting);
  meeting.transport = runtime::make_unix_transport(options.directory);
  return runtime::make_star_exchange(std::move(meeting), nullptr, deadline);
}

}  // namespace commfuse
