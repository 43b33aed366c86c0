// The two members of a pack that are not entries. Internal to packs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/pack.hpp"

namespace commfuse::cache {

inline constexpr auto kPackManifest = "manifest.json";
inline constexpr auto kPackSignature = "manifest.sig";
inline constexpr std::size_t kMaxPackManifestBytes = std::size_t{16} << 20;  // some 40 000 entries

[[nodiscard]] std::string pack_manifest(const std::vector<PackEntry>& entries);
/// Reads untrusted text; every size and hash in the result is within bounds. Throws Error(kInvalidInput).
[[nodiscard]] std::vector<PackEntry> parse_pack_manifest(std::string_view text, const std::string& origin);

struct PackSigner {
  std::string public_key, signature;
};
[[nodiscard]] std::string pack_signature(const PackSigner& signer);
/// Reads untrusted text. Throws Error(kInvalidInput).
[[nodiscard]] PackSigner parse_pack_signature(std::string_view text, const std::string& origin);

/// What is signed. The prefix keeps a signature from serving for anything else.
[[nodiscard]] std::string signed_text(std::string_view manifest);

}  // namespace commfuse::cache
