#include "cache/sha256.hpp"

#include <sodium.h>

#include <new>

namespace commfuse::cache {
namespace {

crypto_hash_sha256_state* state_of(std::array<unsigned char, 128>& storage) {
  static_assert(sizeof(crypto_hash_sha256_state) <= 128);
  return std::launder(reinterpret_cast<crypto_hash_sha256_state*>(storage.data()));
}

std::string to_hex(const std::array<unsigned char, crypto_hash_sha256_BYTES>& digest) {
  std::string text(2 * digest.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), digest.data(), digest.size());
  text.pop_back();
  return text;
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest;
  crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return to_hex(digest);
}

bool is_sha256_hex(std::string_view text) noexcept {
  if (text.size() != 2 * crypto_hash_sha256_BYTES) return false;
  for (const char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  }
  return true;
}

Sha256::Sha256() {
  new (state_.data()) crypto_hash_sha256_state;
  crypto_hash_sha256_init(state_of(state_));
}

void Sha256::update(std::string_view bytes) {
  crypto_hash_sha256_update(state_of(state_), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::string Sha256::hex() {
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest;
  crypto_hash_sha256_final(state_of(state_), digest.data());
  return to_hex(digest);
}

}  // namespace commfuse::cache
