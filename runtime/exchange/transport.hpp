// How a rank reaches the first rank of its group: the part in which Unix sockets and TCP differ.
#pragma once

#include <memory>
#include <string>

#include "runtime/exchange/message.hpp"
#include "runtime/exchange/socket.hpp"

namespace commfuse::runtime {

/// A listening socket of the first rank, open while its group gathers.
class Door {
 public:
  Door() = default;
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  virtual ~Door() = default;
  [[nodiscard]] virtual int socket() const noexcept = 0;
  /// Where the others knock.
  [[nodiscard]] virtual std::string address() const = 0;
  /// Whether the operating system vouches for who is at the other end of an accepted socket.
  [[nodiscard]] virtual bool admits(int accepted) const = 0;
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// Throws Error if there can be no door by the deadline. `address` is empty for a split group, whose first rank tells
  /// the others where its door is.
  [[nodiscard]] virtual std::unique_ptr<Door> open_door(const Key& group, const std::string& address,
                                                        Deadline deadline) = 0;
  /// One attempt to connect; a closed Descriptor and the reason where nobody listens yet.
  [[nodiscard]] virtual Descriptor knock(const Key& group, const std::string& address, Deadline deadline,
                                         std::string& why) = 0;
  /// For messages: the path or the "host:port".
  [[nodiscard]] virtual std::string place(const Key& group, const std::string& address) const = 0;
  /// Learns from a connection to a first rank on which of its own addresses this rank is reached.
  virtual void note_connection(int /*socket*/) {}
  /// The secret to authenticate with; null where the operating system vouches for peers.
  [[nodiscard]] virtual const ExchangeKey* secret() const noexcept { return nullptr; }
  /// Whether descriptors travel with the messages.
  [[nodiscard]] virtual bool carries_descriptors() const noexcept { return false; }
  /// Where descriptors go if not here: the folder for a Unix exchange among the ranks of one host.
  [[nodiscard]] virtual const std::filesystem::path& directory() const noexcept = 0;
};

}  // namespace commfuse::runtime
