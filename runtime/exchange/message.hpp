// What goes over a stream socket between the first rank of a group and each of the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commfuse/exchange.hpp"

namespace commfuse::runtime {

// The grammar, all numbers little-endian:
//
//   message   = header payload tag
//   header    = "CFX" version:u8(1) kind:u8 operation:u8 zero:u16 rank:u32 patience:u32 sequence:u64 length:u32
//               zero:u32
//   payload   = length bytes, at most 1 MiB; before a peer has said who it is, at most 4 KiB
//   tag       = 32 bytes: keyed BLAKE2b of header and payload; zero where the connection has no key
//
//   challenge = nonce[32]                              first rank -> newcomer
//   hello     = group[32] nonce[32] size:u32 host      newcomer -> first rank; header.rank is the newcomer's
//   welcome   = count:u32 host{count}                  first rank -> member: everybody has come
//   refusal   = text                                   first rank -> newcomer, which is of another group
//   link      = (empty)                                a descriptor comes with it: the way to header.rank
//   blob      = any bytes                              member -> first rank: its part of a collective call;
//                                                      first rank -> member: the part of header.rank
//   failure   = code:u8 count:u32 rank:u32{count} text text text      what, cause, remedy; either direction
//   host      = text text mount:u64 pid:u64 ipc:u64 user_namespace:u64 user:u32 process:u32
//   text      = length:u16 bytes
//
// `sequence` counts the messages of one direction of one connection from 0. `patience` is how many milliseconds the
// sender will still wait; 0 where that means nothing.

inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr std::size_t kTagBytes = 32;
inline constexpr std::size_t kMaxStrangerPayload = 4096;
inline constexpr std::size_t kMaxTextBytes = 4096;

using Key = std::array<std::byte, 32>;

enum class MessageKind : std::uint8_t {
  kChallenge = 1,
  kHello = 2,
  kWelcome = 3,
  kRefusal = 4,
  kLink = 5,
  kBlob = 6,
  kFailure = 7,
};

struct Message {
  MessageKind kind = MessageKind::kBlob;
  std::uint8_t operation = 0;
  int rank = 0;
  std::uint32_t patience = 0;
  std::uint64_t sequence = 0;
  Blob payload;
};

struct Hello {
  Key group = {};
  Key nonce = {};
  int size = 0;
  HostIdentity host;
};

/// One step of reading a stream: `message` points at a whole message of `consumed` bytes, or `refusal` says why the
/// bytes can never become one, or neither is set and more bytes are needed. Pure.
struct Parsed {
  std::optional<Message> message;
  std::size_t consumed = 0;
  std::span<const std::byte> authenticated;  ///< header and payload, as the tag covers them
  std::span<const std::byte> tag;
  std::string refusal;
};
[[nodiscard]] Parsed parse_message(std::span<const std::byte> bytes, std::size_t max_payload);

/// Header and payload, without the tag.
[[nodiscard]] Blob write_message(const Message& message);

[[nodiscard]] Blob write_hello(const Hello& hello);
[[nodiscard]] std::optional<Hello> read_hello(std::span<const std::byte> payload);
[[nodiscard]] Blob write_welcome(std::span<const HostIdentity> hosts);
[[nodiscard]] std::optional<std::vector<HostIdentity>> read_welcome(std::span<const std::byte> payload);
[[nodiscard]] Blob write_failure(const ExchangeError& failure);
/// Refuses codes and ranks that do not exist.
[[nodiscard]] std::optional<ExchangeError> read_failure(std::span<const std::byte> payload);

}  // namespace commfuse::runtime
