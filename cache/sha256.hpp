// SHA-256, the hash of keys, sources and cubins.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace commfuse::cache {

/// SHA-256 of `bytes` as 64 lower-case hexadecimal digits.
[[nodiscard]] std::string sha256_hex(std::string_view bytes);

/// Whether `text` has the form of a key or checksum: 64 lower-case hexadecimal digits.
[[nodiscard]] bool is_sha256_hex(std::string_view text) noexcept;

/// The incremental form, for input that is not in memory as one piece.
class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  /// The digest of everything so far; the object is used up by it.
  [[nodiscard]] std::string hex();

 private:
  alignas(std::max_align_t) std::array<unsigned char, 128> state_;  // libsodium's state, kept out of this header
};

}  // namespace commfuse::cache
