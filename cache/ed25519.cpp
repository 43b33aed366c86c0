#include "cache/ed25519.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "cache/file.hpp"
#include "cache/sha256.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

void start() {
  static const bool kStarted = sodium_init() >= 0;
  if (!kStarted) throw Error(Code::kInternal, "cannot use Ed25519", "libsodium did not start");
}

template <std::size_t N>
std::string hex_of(const std::array<unsigned char, N>& bytes) {
  std::string text(2 * N + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), N);
  text.pop_back();
  return text;
}

template <std::size_t N>
bool from_hex(std::string_view text, std::array<unsigned char, N>& bytes) noexcept {
  std::size_t length = 0;
  const char* end = nullptr;
  return text.size() == 2 * N &&
         sodium_hex2bin(bytes.data(), N, text.data(), text.size(), nullptr, &length, &end) == 0 && length == N &&
         end == text.data() + text.size();
}

struct Expanded {
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> public_key{};
  std::array<unsigned char, crypto_sign_SECRETKEYBYTES> secret_key{};
  ~Expanded() { sodium_memzero(secret_key.data(), secret_key.size()); }
};

Expanded expand(std::string_view secret) {
  start();
  std::array<unsigned char, crypto_sign_SEEDBYTES> seed;
  if (!from_hex(secret, seed)) {
    throw Error(Code::kInvalidArgument, "cannot use a secret key", "it is not 64 hexadecimal digits");
  }
  Expanded keys;
  crypto_sign_seed_keypair(keys.public_key.data(), keys.secret_key.data(), seed.data());
  sodium_memzero(seed.data(), seed.size());
  return keys;
}

std::string read_key(const std::filesystem::path& file, bool secret) {
  const std::string subject = "cannot read key '" + file.string() + "'";
  const FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw Error(errno == ENOENT ? Code::kNotFound : Code::kIo, subject, error_text(errno));
  }
  if (secret && (status.st_mode & 0077) != 0) {
    throw Error(Code::kInvalidInput, subject, "others may read it", "Make it private with chmod 600");
  }
  std::array<char, 80> buffer;
  const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
  if (n < 0) throw Error(Code::kIo, subject, error_text(errno));
  std::string text(buffer.data(), static_cast<std::size_t>(n));
  if (text.ends_with('\n')) text.pop_back();
  if (!is_sha256_hex(text)) {
    throw Error(Code::kInvalidInput, subject, "it is not one line of 64 lower-case hexadecimal digits");
  }
  return text;
}

void write_key(const std::filesystem::path& file, const std::string& key, mode_t mode) {
  const FileDescriptor fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  const std::string line = key + "\n";
  if (!fd || ::write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw Error(Code::kIo, "cannot write key '" + file.string() + "'", error_text(errno));
  }
}

}  // namespace

KeyPair make_key_pair() {
  start();
  std::array<unsigned char, crypto_sign_SEEDBYTES> seed;
  randombytes_buf(seed.data(), seed.size());
  KeyPair pair;
  pair.secret = hex_of(seed);
  pair.public_key = public_key_of(pair.secret);
  return pair;
}

std::string public_key_of(std::string_view secret) { return hex_of(expand(secret).public_key); }

void write_key_pair(const KeyPair& pair, const std::filesystem::path& file) {
  write_key(file, pair.secret, 0600);
  write_key(file.string() + ".pub", pair.public_key, 0644);
}

std::string read_secret_key(const std::filesystem::path& file) { return read_key(file, true); }
std::string read_public_key(const std::filesystem::path& file) { return read_key(file, false); }

std::string sign(std::string_view message, std::string_view secret) {
  const Expanded keys = expand(secret);
  std::array<unsigned char, crypto_sign_BYTES> signature;
  crypto_sign_detached(signature.data(), nullptr, reinterpret_cast<const unsigned char*>(message.data()),
                       message.size(), keys.secret_key.data());
  return hex_of(signature);
}

bool is_signed(std::string_view message, std::string_view signature, std::string_view public_key) noexcept {
  std::array<unsigned char, crypto_sign_BYTES> signature_bytes;
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> key_bytes;
  if (sodium_init() < 0 || !from_hex(signature, signature_bytes) || !from_hex(public_key, key_bytes)) return false;
  return crypto_sign_verify_detached(signature_bytes.data(), reinterpret_cast<const unsigned char*>(message.data()),
                                     message.size(), key_bytes.data()) == 0;
}

}  // namespace commfuse::cache
