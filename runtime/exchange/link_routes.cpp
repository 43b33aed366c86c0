// Descriptors over socket pairs. A message is "CFD" version:u8(1) number:u64, with one descriptor; numbers count the
// messages of a direction. A sender waits only for room in the socket's buffer, never for the receiver, so ranks that
// all send to all before they receive cannot block each other.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/routes.hpp"

namespace commfuse::runtime {
namespace {

constexpr std::size_t kMessageBytes = 12;
constexpr std::uint32_t kMagic = 0x01444643;  // "CFD" and the version

class LinkRoutes final : public DescriptorRoutes {
 public:
  LinkRoutes(std::string group, int rank, std::vector<Descriptor> links)
      : group_(std::move(group)),
        rank_(rank),
        links_(std::move(links)),
        sent_(links_.size()),
        received_(links_.size()) {}

  Descriptor pass(int from, int to, int descriptor, Deadline deadline) override {
    if (rank_ == to) return receive(from, deadline);
    send(to, descriptor, deadline);
    return {};
  }

 private:
  void send(int to, int descriptor, Deadline deadline) {
    const auto index = static_cast<std::size_t>(to);
    ByteWriter writer;
    writer.integer(kMagic);
    writer.integer(sent_[index]);
    Blob bytes = writer.take();
    iovec part = {bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(descriptor));
    while (::sendmsg(links_[index].get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      const int number = errno;
      if (number == EINTR) continue;
      if (number == EAGAIN || number == EWOULDBLOCK || number == ETOOMANYREFS || number == ENOBUFS) {
        if (number == ETOOMANYREFS) std::this_thread::sleep_for(Timeout(1));
        if (!wait_for(links_[index].get(), POLLOUT, deadline) || Clock::now() >= deadline) {
          throw failure(Code::kTimeout, to, "it takes no descriptors: too many wait for it");
        }
        continue;
      }
      if (number == EPIPE || number == ECONNRESET) throw failure(Code::kIo, to, "it closed its end");
      throw Error(Code::kIo, "cannot pass a descriptor to rank " + std::to_string(to), errno_text(number));
    }
    ++sent_[index];
  }

  Descriptor receive(int from, Deadline deadline) {
    const auto index = static_cast<std::size_t>(from);
    std::byte bytes[kMessageBytes + 1];
    for (;;) {
      iovec part = {bytes, sizeof(bytes)};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
      msghdr header = {};
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      const ssize_t got = ::recvmsg(links_[index].get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      const int number = errno;
      if (got < 0 && number == EINTR) continue;
      if (got < 0 && (number == EAGAIN || number == EWOULDBLOCK)) {
        if (wait_for(links_[index].get(), POLLIN, deadline)) continue;
        throw failure(Code::kTimeout, from, "it passed no descriptor within the timeout");
      }
      if (got < 0) throw failure(Code::kIo, from, errno_text(number));
      if (got == 0) throw failure(Code::kIo, from, "it closed its end");
      Descriptor received;
      const cmsghdr* rights = CMSG_FIRSTHDR(&header);
      if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(rights), sizeof(descriptor));
        received = Descriptor(descriptor);
      }
      if ((header.msg_flags & MSG_CTRUNC) != 0 && !received.is_open()) {
        throw Error(Code::kIo, "cannot take a descriptor from rank " + std::to_string(from),
                    "this process has no room for another open file", "Raise the limit of open files");
      }
      ByteReader reader(std::span(bytes, static_cast<std::size_t>(got)));
      const bool is_right =
          reader.integer<std::uint32_t>() == kMagic && reader.integer<std::uint64_t>() == received_[index];
      if (!is_right || !reader.is_finished() || !received.is_open()) {
        throw failure(Code::kInvalidInput, from, "it sent a malformed message");
      }
      ++received_[index];
      return received;
    }
  }

  [[nodiscard]] ExchangeError failure(Code code, int other, const std::string& cause) const {
    return {code,
            {other},
            "cannot pass a descriptor in exchange '" + group_ + "'",
            "rank " + std::to_string(other) + ": " + cause,
            ""};
  }

  std::string group_;
  int rank_;
  std::vector<Descriptor> links_;
  std::vector<std::uint64_t> sent_;
  std::vector<std::uint64_t> received_;
};

}  // namespace

std::unique_ptr<DescriptorRoutes> make_link_routes(std::string group, int rank, std::vector<Descriptor> links) {
  return std::make_unique<LinkRoutes>(std::move(group), rank, std::move(links));
}

}  // namespace commfuse::runtime
