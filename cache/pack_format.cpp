#include "cache/pack_format.hpp"

#include <nlohmann/json.hpp>

#include "cache/entry.hpp"
#include "cache/sha256.hpp"
#include "cache/strict_json.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

PackEntry parse_entry(const nlohmann::json& json) {
  PackEntry entry;
  entry.arch = json.at("arch").get<std::string>();
  entry.kernel = json.at("kernel").get<std::string>();
  entry.key = json.at("key").get<std::string>();
  entry.cubin_sha256 = json.at("cubin").at("sha256").get<std::string>();
  entry.cubin_bytes = unsigned_at(json.at("cubin"), "size");
  entry.metadata_sha256 = json.at("metadata").at("sha256").get<std::string>();
  entry.metadata_bytes = unsigned_at(json.at("metadata"), "size");
  return entry;
}

}  // namespace

std::string pack_manifest(const std::vector<PackEntry>& entries) {
  nlohmann::json list = nlohmann::json::array();
  for (const PackEntry& entry : entries) {
    list.push_back({{"arch", entry.arch},
                    {"cubin", {{"sha256", entry.cubin_sha256}, {"size", entry.cubin_bytes}}},
                    {"kernel", entry.kernel},
                    {"key", entry.key},
                    {"metadata", {{"sha256", entry.metadata_sha256}, {"size", entry.metadata_bytes}}}});
  }
  return canonical({{"entries", std::move(list)}, {"format", kPackFormat}});
}

std::vector<PackEntry> parse_pack_manifest(std::string_view text, const std::string& origin) {
  const std::string subject = "cannot use pack '" + origin + "'";
  const auto refuse = [&](const std::string& why) { throw Error(Code::kInvalidInput, subject, "its manifest " + why); };
  const nlohmann::json json = parse_strict(text, "the manifest of pack '" + origin + "'", kMaxPackManifestBytes);
  std::vector<PackEntry> entries;
  try {
    if (unsigned_at(json, "format") != kPackFormat) refuse("has a format that this version does not know");
    for (const nlohmann::json& entry : json.at("entries")) entries.push_back(parse_entry(entry));
  } catch (const nlohmann::json::exception& e) {
    refuse(std::string("is malformed: ") + e.what());
  }
  std::string previous;
  for (const PackEntry& entry : entries) {
    if (!is_sha256_hex(entry.key) || !is_sha256_hex(entry.cubin_sha256) || !is_sha256_hex(entry.metadata_sha256)) {
      refuse("has a key or checksum that is not a SHA-256");
    }
    if (entry.key <= previous) refuse("is not sorted by key");
    if (entry.cubin_bytes > kMaxCubinBytes || entry.metadata_bytes > kMaxMetadataBytes) {
      refuse("has an entry that is too large");
    }
    previous = entry.key;
  }
  // Whatever else might be in it is not what this version writes.
  if (pack_manifest(entries) != text) refuse("is not canonical, or has members it should not have");
  return entries;
}

std::string pack_signature(const PackSigner& signer) {
  return canonical({{"public_key", signer.public_key}, {"signature", signer.signature}});
}

PackSigner parse_pack_signature(std::string_view text, const std::string& origin) {
  const nlohmann::json json = parse_strict(text, "the signature of pack '" + origin + "'", 4096);
  PackSigner signer;
  try {
    signer = {json.at("public_key").get<std::string>(), json.at("signature").get<std::string>()};
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::kInvalidInput, "cannot use pack '" + origin + "'", std::string("its signature: ") + e.what());
  }
  if (pack_signature(signer) != text) {
    throw Error(Code::kInvalidInput, "cannot use pack '" + origin + "'", "its signature is not canonical");
  }
  return signer;
}

std::string signed_text(std::string_view manifest) {
  return "commfuse pack " + std::to_string(kPackFormat) + "\n" + std::string(manifest);
}

}  // namespace commfuse::cache
