#include "runtime/exchange/connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace commfuse::runtime {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxWaitingDescriptors = 2 * kMaxExchangeSize;
constexpr std::size_t kDescriptorsAMessage = 4;

}  // namespace

Connection::Connection(Descriptor socket, Descriptors descriptors)
    : socket_(std::move(socket)), expects_descriptors_(descriptors == Descriptors::kExpected) {}

void Connection::lose(std::string why) {
  if (loss_.empty()) loss_ = std::move(why);
}

void Connection::send(Message message, Descriptor descriptor) {
  if (has_send_failed()) return;
  message.sequence = sent_++;
  Outgoing entry;
  entry.bytes = write_message(message);
  const Key tag = send_key_ ? digest(*send_key_, {entry.bytes}) : Key{};
  entry.bytes.insert(entry.bytes.end(), tag.begin(), tag.end());
  entry.descriptor = std::move(descriptor);
  outgoing_.push_back(std::move(entry));
  write_some();
}

void Connection::write_some() {
  while (!outgoing_.empty()) {
    Outgoing& entry = outgoing_.front();
    iovec part = {entry.bytes.data() + entry.written, entry.bytes.size() - entry.written};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (entry.written == 0 && entry.descriptor.is_open()) {
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      const int number = entry.descriptor.get();
      std::memcpy(CMSG_DATA(rights), &number, sizeof(number));
    }
    const ssize_t written = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (written < 0 && errno == ETOOMANYREFS) {
      // The user has too many descriptors under way; they arrive as fast as the others read.
      std::this_thread::sleep_for(Timeout(1));
      return;
    }
    if (written < 0) {
      // What the other side said before it closed (a failure, most likely) tells more than this error.
      const int number = errno;
      read_some();
      outgoing_.clear();
      send_failed_ = true;
      if (ending_.empty()) ending_ = "its connection broke (" + errno_text(number) + ")";
      return;
    }
    entry.written += static_cast<std::size_t>(written);
    if (entry.written == entry.bytes.size()) outgoing_.pop_front();
  }
}

void Connection::read_some() {
  while (ending_.empty() && incoming_.size() - parsed_ < 2 * (kHeaderBytes + kTagBytes + limit_)) {
    if (parsed_ > 0) {
      incoming_.erase(incoming_.begin(), incoming_.begin() + static_cast<std::ptrdiff_t>(parsed_));
      parsed_ = 0;
    }
    const std::size_t before = incoming_.size();
    incoming_.resize(before + kReadBytes);
    iovec part = {incoming_.data() + before, kReadBytes};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    // Without room for them the kernel closes the descriptors that somebody sends unasked.
    alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsAMessage * sizeof(int))];
    if (expects_descriptors_) {
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
    }
    const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const int number = errno;
    incoming_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && number == EINTR) continue;
    if (got < 0 && (number == EAGAIN || number == EWOULDBLOCK)) return;
    if (got < 0) {
      ending_ = "its connection broke (" + errno_text(number) + ")";
      return;
    }
    if (got == 0) {
      ending_ = "it closed its connection";
      return;
    }
    for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr; entry = CMSG_NXTHDR(&header, entry)) {
      if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int received = -1;
        std::memcpy(&received, CMSG_DATA(entry) + i * sizeof(int), sizeof(received));
        descriptors_.emplace_back(received);
      }
    }
    if (descriptors_.size() > kMaxWaitingDescriptors) ending_ = "it sent more descriptors than messages";
  }
}

void Connection::pump() {
  write_some();
  if (!is_lost()) read_some();
}

std::optional<Message> Connection::take() {
  if (is_lost()) return std::nullopt;
  Parsed parsed = parse_message(std::span(incoming_).subspan(parsed_), limit_);
  if (!parsed.refusal.empty()) {
    lose("it sent a malformed message: " + parsed.refusal);
    return std::nullopt;
  }
  if (!parsed.message) {
    if (!ending_.empty()) lose(ending_);
    return std::nullopt;
  }
  const Key expected = receive_key_ ? digest(*receive_key_, {parsed.authenticated}) : Key{};
  if (!is_equal(expected, parsed.tag)) {
    lose("it sent a message that is not authenticated with the key of this job");
    return std::nullopt;
  }
  if (parsed.message->sequence != received_) {
    lose("it sent message " + std::to_string(parsed.message->sequence) + " where " + std::to_string(received_) +
         " was due");
    return std::nullopt;
  }
  ++received_;
  parsed_ += parsed.consumed;
  return std::move(parsed.message);
}

Descriptor Connection::take_descriptor() {
  if (descriptors_.empty()) return {};
  Descriptor descriptor = std::move(descriptors_.front());
  descriptors_.pop_front();
  return descriptor;
}

short Connection::interest() const noexcept {
  const bool reads =
      !is_lost() && ending_.empty() && incoming_.size() - parsed_ < 2 * (kHeaderBytes + kTagBytes + limit_);
  return static_cast<short>((reads ? POLLIN : 0) | (outgoing_.empty() ? 0 : POLLOUT));
}

void pump_all(std::span<Connection* const> connections, Deadline deadline, std::span<pollfd> others) {
  std::vector<pollfd> entries(others.begin(), others.end());
  std::vector<Connection*> polled;
  for (Connection* connection : connections) {
    if (connection == nullptr || connection->interest() == 0) continue;
    polled.push_back(connection);
    entries.push_back({connection->socket(), connection->interest(), 0});
  }
  const int ready = ::poll(entries.data(), entries.size(), milliseconds_left(deadline));
  if (ready < 0 && errno != EINTR) throw Error(Code::kIo, "cannot wait for the sockets of a group", errno_text(errno));
  for (std::size_t i = 0; i < others.size(); ++i) others[i].revents = ready > 0 ? entries[i].revents : short{0};
  if (ready <= 0) return;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (entries[others.size() + i].revents != 0) polled[i]->pump();
  }
}

}  // namespace commfuse::runtime
