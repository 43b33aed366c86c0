// From a store to a pack and back.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <system_error>

#include "cache/ed25519.hpp"
#include "cache/entry.hpp"
#include "cache/lookup.hpp"
#include "cache/pack_format.hpp"
#include "cache/sha256.hpp"
#include "cache/ustar.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

PackEntry describe(const std::string& key, const Hit& hit) {
  const Metadata metadata = Metadata::parse(hit.metadata_json);
  PackEntry entry;
  entry.key = key;
  entry.kernel = metadata.kernel;
  entry.arch = metadata.arch;
  entry.cubin_sha256 = metadata.cubin_sha256;
  entry.cubin_bytes = hit.cubin.size();
  entry.metadata_sha256 = sha256_hex(hit.metadata_json);
  entry.metadata_bytes = hit.metadata_json.size();
  return entry;
}

std::vector<PackEntry> choose(const Store& store, const std::vector<std::string>& keys) {
  if (keys.empty()) return inventory(store);
  std::vector<PackEntry> entries;
  for (const std::string& key : std::set<std::string>(keys.begin(), keys.end())) {
    const Lookup found = store.read(key);
    if (!found) {
      throw Error(Code::kNotFound, "cannot pack entry " + key,
                  found.detail.empty() ? "it is not in the cache" : found.detail);
    }
    entries.push_back(describe(key, *found.hit));
  }
  return entries;
}

void write_member(AtomicFile& out, const std::string& name, const std::string& data) {
  const auto header = tar_header(name, data.size());
  out.write({header.data(), header.size()});
  out.write(data);
  out.write(std::string(tar_padded(data.size()) - data.size(), '\0'));
}

void write_entries(AtomicFile& out, const Store& store, const std::vector<PackEntry>& entries) {
  for (const PackEntry& entry : entries) {
    const Lookup found = store.read(entry.key);
    if (!found || describe(entry.key, *found.hit) != entry) {
      throw Error(Code::kBusy, "cannot pack entry " + entry.key, "it was changed or removed meanwhile", "Try again");
    }
    write_member(out, cubin_name(entry.key), found.hit->cubin);
    write_member(out, metadata_name(entry.key), found.hit->metadata_json);
  }
}

}  // namespace

std::vector<PackEntry> inventory(const Store& store) {
  std::vector<PackEntry> entries;
  for (const EntryInfo& info : store.list()) {
    if (!entries.empty() && entries.back().key == info.key) continue;
    if (const Lookup found = store.read(info.key)) entries.push_back(describe(info.key, *found.hit));
  }
  return entries;
}

std::vector<PackEntry> write_pack(const Store& store, const std::filesystem::path& file, const PackOptions& options) {
  std::vector<PackEntry> entries = choose(store, options.keys);
  const std::string manifest = pack_manifest(entries);
  if (manifest.size() > kMaxPackManifestBytes) {
    throw Error(Code::kInvalidArgument, "cannot write pack '" + file.string() + "'",
                std::to_string(entries.size()) + " entries are too many for one pack", "Choose fewer");
  }
  std::string signature;
  if (!options.secret_key.empty()) {
    signature = pack_signature({public_key_of(options.secret_key), sign(signed_text(manifest), options.secret_key)});
  }
  const std::filesystem::path target = std::filesystem::absolute(file);
  try {
    const FileDescriptor directory(::open(target.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory) throw std::system_error(errno, std::generic_category(), "open directory");
    AtomicFile out(directory.get(), target.filename().string(), 0644);
    write_member(out, kPackManifest, manifest);
    if (!signature.empty()) write_member(out, kPackSignature, signature);
    write_entries(out, store, entries);
    out.write(std::string(2 * kTarBlock, '\0'));
    out.commit();
  } catch (const std::system_error& e) {
    throw Error(Code::kIo, "cannot write pack '" + file.string() + "'", e.what());
  }
  return entries;
}

UnpackReport unpack(const Pack& pack, const Store& store) {
  const auto verified = [&](const PackEntry& entry) {
    Lookup found = verify_entry(pack, entry.key);
    if (!found || describe(entry.key, *found.hit) != entry) {
      throw Error(
          Code::kInvalidInput, "cannot unpack '" + pack.path().string() + "'",
          found ? "its manifest says other things of entry " + entry.key + " than the entry itself" : found.detail);
    }
    return found;
  };
  for (const PackEntry& entry : pack.entries()) (void)verified(entry);
  UnpackReport report;
  for (const PackEntry& entry : pack.entries()) {
    const Publication result = store.import_entry(entry.key, *verified(entry).hit);
    switch (result.result) {
      case Publication::Result::kStored:
        ++report.stored;
        break;
      case Publication::Result::kKept:
        ++report.kept;
        break;
      default:
        report.failures.push_back(entry.key + ": " + result.detail);
    }
  }
  return report;
}

PackDifference diff(const std::vector<PackEntry>& first, const std::vector<PackEntry>& second) {
  PackDifference difference;
  std::map<std::string, const PackEntry*> of_first;
  for (const PackEntry& entry : first) of_first[entry.key] = &entry;
  for (const PackEntry& entry : second) {
    const auto it = of_first.find(entry.key);
    if (it == of_first.end()) {
      difference.only_in_second.push_back(entry);
      continue;
    }
    if (it->second->cubin_sha256 != entry.cubin_sha256) difference.other_cubin.push_back(entry);
    of_first.erase(it);
  }
  for (const PackEntry& entry : first) {
    if (of_first.contains(entry.key)) difference.only_in_first.push_back(entry);
  }
  return difference;
}

}  // namespace commfuse::cache
