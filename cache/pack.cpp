#include "cache/pack.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>

#include "cache/ed25519.hpp"
#include "cache/entry.hpp"
#include "cache/pack_format.hpp"
#include "cache/sha256.hpp"
#include "cache/ustar.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& why) {
  throw Error(Code::kInvalidInput, "cannot use pack '" + file.string() + "'", why);
}

bool all_zero(std::string_view bytes) { return bytes.find_first_not_of('\0') == std::string_view::npos; }

}  // namespace

Pack::Pack(std::filesystem::path path) : Layer(std::move(path)), status_(std::make_unique<struct stat>()) {}
Pack::~Pack() = default;

std::string Pack::read_exactly(std::uint64_t offset, std::uint64_t bytes) const {
  const auto size = static_cast<std::uint64_t>(status_->st_size);
  if (offset > size || bytes > size - offset) refuse(path(), "it ends too early");
  std::string data(bytes, '\0');
  std::uint64_t filled = 0;
  while (filled < bytes) {
    const ssize_t n = ::pread(file_.get(), data.data() + filled, bytes - filled, static_cast<off_t>(offset + filled));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(Code::kIo, "cannot read pack '" + path().string() + "'", error_text(errno));
    if (n == 0) refuse(path(), "it was cut while being read");
    filled += static_cast<std::uint64_t>(n);
  }
  return data;
}

std::optional<std::string> Pack::read_member(const std::string& wanted, std::uint64_t max_bytes,
                                             std::uint64_t& offset) const {
  std::array<char, kTarBlock> block;
  const std::string header = read_exactly(offset, kTarBlock);
  std::copy(header.begin(), header.end(), block.begin());
  std::string name;
  std::uint64_t bytes = 0;
  if (!read_tar_header(block, name, bytes) || name != wanted) return std::nullopt;
  if (bytes > max_bytes) refuse(path(), wanted + " is too large");
  std::string data = read_exactly(offset + kTarBlock, tar_padded(bytes));
  if (!all_zero(std::string_view(data).substr(bytes))) refuse(path(), "there is something behind " + wanted);
  data.resize(bytes);
  offset += kTarBlock + tar_padded(bytes);
  return data;
}

std::unique_ptr<Pack> Pack::open(const std::filesystem::path& file, const std::vector<std::string>& trusted_keys) {
  std::unique_ptr<Pack> pack(new Pack(file));
  pack->file_ = FileDescriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!pack->file_ || ::fstat(pack->file_.get(), pack->status_.get()) != 0) {
    throw Error(errno == ENOENT ? Code::kNotFound : Code::kIo, "cannot open pack '" + file.string() + "'",
                error_text(errno));
  }
  if (!S_ISREG(pack->status_->st_mode)) refuse(file, "it is not a regular file");

  std::uint64_t offset = 0;
  const std::optional<std::string> manifest = pack->read_member(kPackManifest, kMaxPackManifestBytes, offset);
  if (!manifest) refuse(file, "it does not begin like a pack");
  if (const auto signature = pack->read_member(kPackSignature, 4096, offset)) {
    const PackSigner signer = parse_pack_signature(*signature, file.string());
    if (!is_signed(signed_text(*manifest), signer.signature, signer.public_key)) {
      refuse(file, "its signature is wrong: it was changed after it was signed");
    }
    pack->signer_ = signer.public_key;
  }
  if (!trusted_keys.empty() &&
      std::find(trusted_keys.begin(), trusted_keys.end(), pack->signer_) == trusted_keys.end()) {
    refuse(file, pack->signer_.empty() ? "it is not signed, and only signed packs are trusted"
                                       : "it is signed by " + pack->signer_ + ", which is not trusted");
  }
  pack->entries_ = parse_pack_manifest(*manifest, file.string());
  for (const PackEntry& entry : pack->entries_) {
    pack->offsets_.push_back(offset);
    offset += 2 * kTarBlock + tar_padded(entry.cubin_bytes) + tar_padded(entry.metadata_bytes);
  }
  const auto size = static_cast<std::uint64_t>(pack->status_->st_size);
  if (size != offset + 2 * kTarBlock) {
    refuse(file, "it has " + std::to_string(size) + " bytes instead of " + std::to_string(offset + 2 * kTarBlock));
  }
  if (!all_zero(pack->read_exactly(offset, 2 * kTarBlock))) refuse(file, "it does not end like a pack");
  return pack;
}

FileRead Pack::read(const std::string& name, std::size_t max_bytes) const {
  if (name.size() < 67) return {ENOENT, {}};
  const std::string_view key = std::string_view(name).substr(3, 64);
  const auto it = std::lower_bound(entries_.begin(), entries_.end(), key,
                                   [](const PackEntry& entry, std::string_view k) { return entry.key < k; });
  if (it == entries_.end() || it->key != key) return {ENOENT, {}};
  std::uint64_t offset = offsets_[static_cast<std::size_t>(it - entries_.begin())];
  const bool cubin = name == cubin_name(key);
  if (!cubin && name != metadata_name(key)) return {ENOENT, {}};
  if (!cubin) offset += kTarBlock + tar_padded(it->cubin_bytes);
  if ((cubin ? it->cubin_bytes : it->metadata_bytes) > max_bytes) return {EFBIG, {}};
  try {
    std::optional<std::string> data = read_member(name, max_bytes, offset);
    // A pack that lies about its content is as good as one that cannot be read.
    if (!data || sha256_hex(*data) != (cubin ? it->cubin_sha256 : it->metadata_sha256)) return {EIO, {}};
    return {0, std::move(*data)};
  } catch (const Error&) {
    return {EIO, {}};
  }
}

std::vector<ListedFile> Pack::list() const {
  std::vector<ListedFile> files;
  for (const PackEntry& entry : entries_) {
    files.push_back({cubin_name(entry.key), entry.cubin_bytes, status_->st_mtime});
    files.push_back({metadata_name(entry.key), entry.metadata_bytes, status_->st_mtime});
  }
  return files;
}

}  // namespace commfuse::cache
