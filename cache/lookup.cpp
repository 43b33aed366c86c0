#include "cache/lookup.hpp"

#include <cerrno>
#include <map>
#include <string>

#include "cache/cubin.hpp"
#include "cache/entry.hpp"
#include "cache/sha256.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

Lookup miss(Miss reason, const Layer& layer, const std::string& file, const std::string& what) {
  Lookup result;
  result.reason = reason;
  result.detail = (layer.path() / file).string() + ": " + what;
  return result;
}

// An entry in memory, to be judged like one on disk.
class MemoryLayer : public Layer {
 public:
  MemoryLayer(std::string_view key, const Hit& entry) : Layer("the entry given"), key_(key), entry_(entry) {}
  [[nodiscard]] FileRead read(const std::string& name, std::size_t max_bytes) const override {
    const std::string& bytes = name == cubin_name(key_) ? entry_.cubin : entry_.metadata_json;
    return bytes.size() > max_bytes ? FileRead{EFBIG, {}} : FileRead{0, bytes};
  }
  [[nodiscard]] std::vector<ListedFile> list() const override { return {}; }

 private:
  std::string_view key_;
  const Hit& entry_;
};

// Fills in what the metadata says, or what is wrong with it.
void describe(const Layer& layer, EntryInfo& entry) {
  FileRead json = layer.read(metadata_name(entry.key), kMaxMetadataBytes);
  if (json.error != 0) {
    entry.problem = json.error == ENOENT ? "it has no metadata" : error_text(json.error);
    return;
  }
  try {
    const Metadata metadata = Metadata::parse(json.bytes);
    if (sha256_hex(metadata.signature_json) != entry.key) {
      entry.problem = "its metadata is of another key";
    } else if (metadata.cubin_bytes != entry.cubin_bytes) {
      entry.problem = "its cubin is missing or has another size";
    }
    entry.kernel = metadata.kernel;
    entry.arch = metadata.arch;
    entry.created_unix = metadata.created;
    entry.metadata_json = std::move(json.bytes);
  } catch (const Error& e) {
    entry.problem = e.cause();
  }
}

}  // namespace

Lookup read_entry(const Layer& layer, std::string_view key, std::string_view signature_json) {
  const std::string json_file = metadata_name(key);
  FileRead json = layer.read(json_file, kMaxMetadataBytes);
  if (json.error == ENOENT || json.error == ENOTDIR) return {};
  if (json.error == EFBIG) return miss(Miss::kMalformed, layer, json_file, "it is too large");
  if (json.error != 0) return miss(Miss::kUnreadable, layer, json_file, error_text(json.error));

  Metadata metadata;
  try {
    metadata = Metadata::parse(json.bytes);
  } catch (const Error& e) {
    return miss(Miss::kMalformed, layer, json_file, e.cause());
  }
  if (metadata.signature_json != signature_json) {
    return miss(Miss::kForeign, layer, json_file, "it is of another signature");
  }

  const std::string cubin_file = cubin_name(key);
  FileRead cubin = layer.read(cubin_file, kMaxCubinBytes);
  if (cubin.error == ENOENT)
    return miss(Miss::kCubinMissing, layer, cubin_file, "it is missing, its metadata is there");
  if (cubin.error == EFBIG) return miss(Miss::kCubinSize, layer, cubin_file, "it is too large");
  if (cubin.error != 0) return miss(Miss::kUnreadable, layer, cubin_file, error_text(cubin.error));
  if (cubin.bytes.size() != metadata.cubin_bytes) {
    return miss(
        Miss::kCubinSize, layer, cubin_file,
        "it has " + std::to_string(cubin.bytes.size()) + " bytes instead of " + std::to_string(metadata.cubin_bytes));
  }
  if (sha256_hex(cubin.bytes) != metadata.cubin_sha256) {
    return miss(Miss::kCubinHash, layer, cubin_file, "its checksum is not the recorded one");
  }
  const CubinCheck check = check_cubin(cubin.bytes, metadata.arch);
  if (check.result == CubinCheck::Result::kNotCubin) return miss(Miss::kNotCubin, layer, cubin_file, check.detail);
  if (check.result == CubinCheck::Result::kWrongArch) return miss(Miss::kWrongArch, layer, cubin_file, check.detail);

  Lookup found;
  found.hit = Hit{std::move(cubin.bytes), std::move(json.bytes), layer.path(), std::move(metadata.cubin_sha256)};
  return found;
}

Lookup verify_entry(const Layer& layer, std::string_view key) {
  const std::string json_file = metadata_name(key);
  const FileRead json = layer.read(json_file, kMaxMetadataBytes);
  std::string signature;
  if (json.error == 0) {
    try {
      signature = Metadata::parse(json.bytes).signature_json;
    } catch (const Error& e) {
      return miss(Miss::kMalformed, layer, json_file, e.cause());
    }
    if (sha256_hex(signature) != key) return miss(Miss::kForeign, layer, json_file, "its signature has another key");
  }
  return read_entry(layer, key, signature);
}

Lookup verify_entry(std::string_view key, const Hit& entry) { return verify_entry(MemoryLayer(key, entry), key); }

std::vector<EntryInfo> list_entries(const Layer& layer) {
  std::map<std::string, EntryInfo> by_key;
  for (const ListedFile& file : layer.list()) {
    EntryInfo& entry = by_key[file.name.substr(3, 64)];
    entry.disk_bytes += file.bytes;
    if (file.name.ends_with(".cubin")) {
      entry.cubin_bytes = file.bytes;
    } else {
      entry.last_used_unix = file.modified;
    }
  }
  std::vector<EntryInfo> entries;
  for (auto& [key, entry] : by_key) {
    entry.key = key;
    entry.layer = layer.path();
    describe(layer, entry);
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace commfuse::cache
