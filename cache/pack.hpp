// Entries in one file, to be shipped and to be read in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/layer.hpp"
#include "cache/store.hpp"

struct stat;

namespace commfuse::cache {

// A pack is an uncompressed ustar archive (ustar.hpp) of exactly these files, in this order, and two blocks of zeros:
//
//   manifest.json       {"entries": [{"arch", "cubin": {"sha256", "size"}, "kernel", "key",
//                        "metadata": {"sha256", "size"}}, ...], "format": 1}, canonical, the entries sorted by key
//   manifest.sig        only if signed: {"public_key", "signature"}, canonical; the Ed25519 signature is that of
//                       "commfuse pack 1\n" followed by manifest.json
//   ab/<key>.cubin      for each entry in the manifest's order, as in a directory (entry.hpp)
//   ab/<key>.json
//
// Equal entries make equal bytes, whoever packs them when. The manifest fixes every later byte by its hashes, so the
// signature covers the whole. Any change raises kPackFormat.
inline constexpr int kPackFormat = 1;

struct PackEntry {
  std::string key, kernel, arch;
  std::string cubin_sha256, metadata_sha256;
  std::uint64_t cubin_bytes = 0, metadata_bytes = 0;

  [[nodiscard]] bool operator==(const PackEntry&) const = default;
};

/// An opened pack. Opening checks the manifest, its signature if there is one, and that the file has the length that
/// the manifest says; entries are checked as they are read. It can be a layer of a Store.
class Pack : public Layer {
 public:
  /// Throws Error(kNotFound, kIo) or Error(kInvalidInput) saying what is wrong. `trusted_keys` are public keys of 64
  /// hexadecimal digits; if there are any, the pack must be signed by one of them.
  [[nodiscard]] static std::unique_ptr<Pack> open(const std::filesystem::path& file,
                                                  const std::vector<std::string>& trusted_keys = {});

  [[nodiscard]] const std::vector<PackEntry>& entries() const noexcept { return entries_; }
  /// The public key that signed it, whether trusted or not; empty if it is not signed.
  [[nodiscard]] const std::string& signer() const noexcept { return signer_; }
  /// Owner and permissions of the file, for the trust rules of layers.
  [[nodiscard]] const struct stat& status() const noexcept { return *status_; }

  [[nodiscard]] FileRead read(const std::string& name, std::size_t max_bytes) const override;
  [[nodiscard]] std::vector<ListedFile> list() const override;
  ~Pack() override;

 private:
  explicit Pack(std::filesystem::path path);
  /// The member at `offset` if it has this name, with `offset` moved behind it.
  [[nodiscard]] std::optional<std::string> read_member(const std::string& wanted, std::uint64_t max_bytes,
                                                       std::uint64_t& offset) const;
  [[nodiscard]] std::string read_exactly(std::uint64_t offset, std::uint64_t bytes) const;

  FileDescriptor file_;
  std::unique_ptr<struct stat> status_;
  std::vector<PackEntry> entries_;
  std::vector<std::uint64_t> offsets_;  // of the header of each entry's cubin
  std::string signer_;
};

struct PackOptions {
  std::vector<std::string> keys;  ///< what to take; empty: every intact entry
  std::string secret_key;         ///< to sign with (ed25519.hpp); empty: not signed
};

/// Writes the chosen entries of all layers of `store`, each read and verified, to `file`, all or nothing. Returns what
/// is in it. Throws Error(kNotFound) naming a chosen key that is not there intact, Error(kIo).
std::vector<PackEntry> write_pack(const Store& store, const std::filesystem::path& file,
                                  const PackOptions& options = {});

struct UnpackReport {
  std::uint64_t stored = 0;           ///< written
  std::uint64_t kept = 0;             ///< were there, intact
  std::vector<std::string> failures;  ///< one line each: I/O
};

/// Verifies every entry of the pack, then puts them into the store's writable directory. Names of files come from keys
/// alone, so a pack cannot write anywhere else, and nothing is written if anything in it is wrong:
/// Error(kInvalidInput). A pack needs no more memory than its largest entry, and takes no more room than its own
/// length.
UnpackReport unpack(const Pack& pack, const Store& store);

/// What two sets of entries (packs, or stores by inventory()) do not have in common.
struct PackDifference {
  std::vector<PackEntry> only_in_first, only_in_second;
  std::vector<PackEntry> other_cubin;  ///< in both under one key, with other bytes; as in the second
};
[[nodiscard]] PackDifference diff(const std::vector<PackEntry>& first, const std::vector<PackEntry>& second);

/// The intact entries of all layers, each key once, sorted by key; metadata hashes included. Reads every file.
[[nodiscard]] std::vector<PackEntry> inventory(const Store& store);

}  // namespace commfuse::cache
