#include "runtime/exchange/keys.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/exchange/bytes.hpp"

namespace commfuse {
namespace runtime {
namespace {

void start_sodium() {
  static const int status = sodium_init();
  if (status < 0) throw Error(Code::kInternal, "cannot start libsodium", "it found no source of random bytes");
}

}  // namespace

Key random_key() {
  start_sodium();
  Key key;
  randombytes_buf(key.data(), key.size());
  return key;
}

Key digest(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts) {
  start_sodium();
  crypto_generichash_state state;
  Key result;
  crypto_generichash_init(&state, reinterpret_cast<const unsigned char*>(key.data()), key.size(), result.size());
  for (const auto& part : parts) {
    ByteWriter length;
    length.integer(static_cast<std::uint64_t>(part.size()));
    const Blob prefix = length.take();
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(prefix.data()), prefix.size());
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  }
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(result.data()), result.size());
  return result;
}

bool is_equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

Key hello_key(const ExchangeKey& secret, const Key& first_nonce) {
  return digest(secret.bytes(), {as_span("hello"), first_nonce});
}

ConnectionKeys connection_keys(const ExchangeKey& secret, const Key& first_nonce, const Key& newcomer_nonce) {
  return {hello_key(secret, first_nonce), digest(secret.bytes(), {as_span("to first"), first_nonce, newcomer_nonce}),
          digest(secret.bytes(), {as_span("from first"), first_nonce, newcomer_nonce})};
}

}  // namespace runtime

namespace {

constexpr std::size_t kMinSecretBytes = 16;
constexpr std::size_t kMaxSecretBytes = 4096;

}  // namespace

ExchangeKey ExchangeKey::from_secret(std::string_view secret) {
  if (secret.size() < kMinSecretBytes) {
    throw Error(Code::kInvalidArgument, "cannot use the exchange key",
                "it has " + std::to_string(secret.size()) + " bytes, at least 16 are needed",
                "Make one with: head -c 32 /dev/urandom | base64");
  }
  ExchangeKey key;
  const auto derived = runtime::digest({}, {runtime::as_span("commfuse exchange key"), runtime::as_span(secret)});
  std::copy(derived.begin(), derived.end(), key.bytes_);
  return key;
}

ExchangeKey ExchangeKey::from_file(const std::filesystem::path& path) {
  const std::string what = "cannot read the exchange key from '" + path.string() + "'";
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) throw Error(errno == ENOENT ? Code::kNotFound : Code::kIo, what, std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw Error(Code::kIo, what, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw Error(Code::kInvalidArgument, what, "it is not a regular file");
  if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    throw Error(Code::kInvalidArgument, what, "others than its owner, who must be this user, may read or write it",
                "Make it yours with chown and private with chmod 600");
  }
  std::string secret(kMaxSecretBytes + 1, '\0');
  std::size_t length = 0;
  while (length < secret.size()) {
    const ssize_t got = ::read(file.get(), secret.data() + length, secret.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(Code::kIo, what, std::strerror(errno));
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  if (length > kMaxSecretBytes) throw Error(Code::kInvalidArgument, what, "it has more than 4096 bytes");
  secret.resize(length);
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  return from_secret(secret);
}

ExchangeKey ExchangeKey::from_environment(const std::map<std::string, std::string>& environment) {
  if (const auto found = environment.find("COMMFUSE_EXCHANGE_KEY"); found != environment.end()) {
    return from_secret(found->second);
  }
  if (const auto found = environment.find("COMMFUSE_EXCHANGE_KEY_FILE"); found != environment.end()) {
    return from_file(found->second);
  }
  throw Error(
      Code::kInvalidArgument, "cannot start a TCP exchange", "the ranks share no key",
      "Set COMMFUSE_EXCHANGE_KEY to the same secret on every rank, or COMMFUSE_EXCHANGE_KEY_FILE to a file of mode "
      "0600 that holds it");
}

}  // namespace commfuse
