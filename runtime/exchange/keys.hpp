// Keys and tags of a connection, derived from the secret of a job.
#pragma once

#include <span>
#include <string_view>

#include "runtime/exchange/message.hpp"

namespace commfuse::runtime {

/// Unpredictable bytes: nonces and the names of split groups.
[[nodiscard]] Key random_key();
/// Keyed BLAKE2b (unkeyed where `key` is empty) of the parts, each preceded by its length.
[[nodiscard]] Key digest(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);
/// In constant time.
[[nodiscard]] bool is_equal(std::span<const std::byte> a, std::span<const std::byte> b);
[[nodiscard]] std::string to_hex(std::span<const std::byte> bytes);

/// The keys of one connection. The hello is authenticated under a key that depends on the first rank's nonce, all that
/// follows under keys that depend on both nonces, one for each direction: a recorded message fits no other connection,
/// cannot be sent back to its sender, and by its sequence number has one place in its stream.
struct ConnectionKeys {
  Key hello;
  Key to_first;
  Key from_first;
};
[[nodiscard]] Key hello_key(const ExchangeKey& secret, const Key& first_nonce);
[[nodiscard]] ConnectionKeys connection_keys(const ExchangeKey& secret, const Key& first_nonce,
                                             const Key& newcomer_nonce);

}  // namespace commfuse::runtime
