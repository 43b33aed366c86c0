// Signatures of packs.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace commfuse::cache {

/// An Ed25519 key pair, each half as 64 hexadecimal digits. The secret half is the seed, as other tools keep it too.
struct KeyPair {
  std::string secret;
  std::string public_key;
};

/// A new pair. Throws Error(kInternal) where libsodium cannot start.
[[nodiscard]] KeyPair make_key_pair();
[[nodiscard]] std::string public_key_of(std::string_view secret);

/// Writes `secret` to `file` (mode 0600) and the public half to `file`.pub, each as a line of hexadecimal digits.
/// Neither may exist. Throws Error(kIo).
void write_key_pair(const KeyPair& pair, const std::filesystem::path& file);
/// Reads one of the two. Throws Error(kNotFound, kIo, kInvalidInput); a secret that others may read is refused.
[[nodiscard]] std::string read_secret_key(const std::filesystem::path& file);
[[nodiscard]] std::string read_public_key(const std::filesystem::path& file);

/// The signature of `message`, 128 hexadecimal digits. Throws Error(kInvalidArgument) for a malformed secret.
[[nodiscard]] std::string sign(std::string_view message, std::string_view secret);
/// Whether `signature` is that of the holder of `public_key`. False for anything malformed.
[[nodiscard]] bool is_signed(std::string_view message, std::string_view signature,
                             std::string_view public_key) noexcept;

}  // namespace commfuse::cache
