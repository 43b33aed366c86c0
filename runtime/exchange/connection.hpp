// Messages over one non-blocking stream socket.
#pragma once

#include <poll.h>

#include <deque>
#include <optional>
#include <span>
#include <string>

#include "runtime/exchange/keys.hpp"
#include "runtime/exchange/message.hpp"
#include "runtime/exchange/socket.hpp"

namespace commfuse::runtime {

/// Never blocks and never throws for what the other side does: a connection that ended, broke or carried something that
/// is not a message is `lost`, once the whole messages that came before are taken. A failure may still be sent there.
class Connection {
 public:
  enum class Descriptors { kRefused, kExpected };

  explicit Connection(Descriptor socket, Descriptors descriptors = Descriptors::kRefused);

  [[nodiscard]] int socket() const noexcept { return socket_.get(); }
  void set_limit(std::size_t max_payload) noexcept { limit_ = max_payload; }
  void set_send_key(const Key& key) { send_key_ = key; }
  void set_receive_key(const Key& key) { receive_key_ = key; }

  /// Queues a message (numbering it) and writes what the socket takes. A descriptor travels with its first byte.
  void send(Message message, Descriptor descriptor = {});
  /// Reads and writes what the socket allows now.
  void pump();
  /// The next whole message that was read.
  [[nodiscard]] std::optional<Message> take();
  /// The descriptor that came with a link message.
  [[nodiscard]] Descriptor take_descriptor();

  [[nodiscard]] bool is_flushed() const noexcept { return outgoing_.empty(); }
  /// What was queued can no longer be sent.
  [[nodiscard]] bool has_send_failed() const noexcept { return send_failed_; }
  /// After take() returned nothing: no message will come any more, for the reason `loss()`.
  [[nodiscard]] bool is_lost() const noexcept { return !loss_.empty(); }
  [[nodiscard]] const std::string& loss() const noexcept { return loss_; }
  /// What poll() should watch; 0 where nothing can come and nothing is to be sent.
  [[nodiscard]] short interest() const noexcept;

 private:
  struct Outgoing {
    Blob bytes;
    std::size_t written = 0;
    Descriptor descriptor;
  };
  void write_some();
  void read_some();
  void lose(std::string why);

  Descriptor socket_;
  bool expects_descriptors_;
  std::size_t limit_ = kMaxBlobBytes;
  std::optional<Key> send_key_;
  std::optional<Key> receive_key_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::deque<Outgoing> outgoing_;
  Blob incoming_;
  std::size_t parsed_ = 0;
  std::deque<Descriptor> descriptors_;
  std::string ending_;  ///< why reading ended; becomes the loss when the messages before it are taken
  std::string loss_;
  bool send_failed_ = false;
};

/// Waits until one of the connections can do something, lets all that can do it, and returns; or the deadline passes.
/// Null connections and those without interest are passed over. Of `others`, the revents are filled in.
void pump_all(std::span<Connection* const> connections, Deadline deadline, std::span<pollfd> others = {});

}  // namespace commfuse::runtime
