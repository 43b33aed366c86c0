#include "cache/store.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <system_error>

#include "cache/cubin.hpp"
#include "cache/entry.hpp"
#include "cache/gc.hpp"
#include "cache/layer.hpp"
#include "cache/locks.hpp"
#include "cache/lookup.hpp"
#include "cache/pack.hpp"
#include "cache/sha256.hpp"
#include "cache/signature.hpp"
#include "cache/trust.hpp"
#include "cache/usage.hpp"
#include "cache/writer.hpp"
#include "commfuse/error.hpp"
#include "commfuse/version.hpp"

namespace commfuse::cache {

std::string_view to_string(Miss miss) noexcept {
  switch (miss) {
    case Miss::kAbsent:
      return "absent";
    case Miss::kUncached:
      return "uncached";
    case Miss::kUnreadable:
      return "unreadable";
    case Miss::kMalformed:
      return "malformed";
    case Miss::kForeign:
      return "foreign";
    case Miss::kCubinMissing:
      return "cubin_missing";
    case Miss::kCubinSize:
      return "cubin_size";
    case Miss::kCubinHash:
      return "cubin_hash";
    case Miss::kNotCubin:
      return "not_cubin";
    case Miss::kWrongArch:
      return "wrong_arch";
  }
  return "unknown";
}

struct Store::State {
  explicit State(StoreOptions chosen)
      : options(std::move(chosen)),
        max_bytes(options.max_bytes.value_or(options.directories.max_bytes)),
        locks(options.directories) {}

  StoreOptions options;
  const std::uint64_t max_bytes;
  Locks locks;
  std::vector<std::unique_ptr<Layer>> layers;
  DirectoryLayer* writable = nullptr;  // layers.front(), or null
  std::vector<std::filesystem::path> paths;

  mutable std::atomic<bool> warned_of_store{false};
  std::atomic<std::uint64_t> hits{0}, stored{0}, kept{0}, store_failed{0};
  std::array<std::atomic<std::uint64_t>, kMissCount> misses{};

  std::mutex bound_mutex;
  std::uint64_t bytes_believed = 0;  // in the writable directory; others add to it unseen
  int publishes_until_scan = 0;

  void warn(const std::string& message) const {
    if (options.warn) options.warn(message);
  }

  // After `added` bytes were published.
  void keep_within_bound(std::uint64_t added) {
    constexpr int kPublishesPerScan = 64;
    if (max_bytes == 0) return;
    const std::unique_lock lock(bound_mutex, std::try_to_lock);
    if (!lock) return;  // another thread is at it
    bytes_believed += added;
    if (--publishes_until_scan >= 0 && bytes_believed <= max_bytes) return;
    GcOptions bound;
    bound.max_bytes = max_bytes;
    bytes_believed = collect_garbage(*writable, locks, bound).bytes_after;
    publishes_until_scan = kPublishesPerScan;
  }

  Publication failed(Publication::Result result, const std::string& detail) {
    ++store_failed;
    if (result == Publication::Result::kFailed && !warned_of_store.exchange(true)) {
      warn(
          "cannot store a compiled kernel: " + detail +
          ". Kernels that are not stored are compiled again at every start; set COMMFUSE_CACHE_DIR to a directory that "
          "can be written");
    }
    return {result, detail};
  }

  // Writes an entry that is known to be well-formed.
  Publication store(std::string_view key, std::string_view signature_json, std::string_view cubin,
                    const std::string& json) {
    if (writable == nullptr) return failed(Publication::Result::kUncached, "there is no directory to store kernels in");

    const std::string where = "'" + writable->path().string() + "'";
    try {
      if (const Lookup there = read_entry(*writable, key, signature_json)) {
        ++kept;
        Publication answer{Publication::Result::kKept, {}};
        if (there.hit->cubin != cubin) answer.detail = where + " holds another cubin for the same key, which stays";
        return answer;
      }
      DirectoryLayer::Opened opened = writable->open();
      if (!opened.directory && opened.error == ENOENT) {
        create_cache_directory(writable->path());
        opened = writable->open();
      }
      if (!opened.directory) {
        // A refusal was warned of when the directory was opened.
        if (!opened.refused.empty()) warned_of_store = true;
        const std::string why = opened.refused.empty() ? error_text(opened.error) : opened.refused;
        return failed(Publication::Result::kFailed, where + ": " + why);
      }
      write_entry(*opened.directory, key, cubin, json);
      ++stored;
      keep_within_bound(cubin.size() + json.size());
      return {Publication::Result::kStored, {}};
    } catch (const std::system_error& e) {
      return failed(Publication::Result::kFailed, where + ": " + e.what());
    }
  }
};

Store::Store(StoreOptions options) : state_(std::make_unique<State>(std::move(options))) {
  State& s = *state_;
  const Directories& directories = s.options.directories;
  for (const std::string& warning : directories.warnings) s.warn(warning);
  const auto add = [&s](std::unique_ptr<Layer> layer) {
    s.paths.push_back(layer->path());
    s.layers.push_back(std::move(layer));
  };
  const auto open_directory = [&](const std::filesystem::path& path) {
    return std::make_unique<DirectoryLayer>(path, directories.trusted, [&s](const std::string& m) { s.warn(m); });
  };
  if (!directories.writable.empty()) {
    auto layer = open_directory(directories.writable);
    s.writable = layer.get();
    add(std::move(layer));
  }
  for (const std::filesystem::path& path : directories.readonly) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) {
      add(open_directory(path));
      continue;
    }
    try {
      auto pack = Pack::open(path);
      if (const auto why = why_untrusted(path, pack->status(), directories.trusted)) {
        s.warn("pack '" + path.string() + "' is not used: " + *why +
               ". Take the write permission away, or name it in COMMFUSE_CACHE_TRUST if that is intended");
        continue;
      }
      add(std::move(pack));
    } catch (const Error& e) {
      s.warn(std::string(e.what()) + ". COMMFUSE_CACHE_READONLY names it");
    }
  }
}

Store::~Store() = default;

Lookup Store::find(std::string_view key, std::string_view signature_json) const {
  State& s = *state_;
  Lookup result = peek(key, signature_json);
  if (result) {
    ++s.hits;
    if (s.writable != nullptr && result.hit->origin == s.writable->path()) s.writable->touch(metadata_name(key));
  } else {
    ++s.misses[static_cast<std::size_t>(result.reason)];
  }
  return result;
}

Lookup Store::peek(std::string_view key, std::string_view signature_json) const {
  Lookup result;
  if (state_->layers.empty()) result.reason = Miss::kUncached;
  if (!is_sha256_hex(key)) return result;
  for (const auto& layer : state_->layers) {
    Lookup here = read_entry(*layer, key, signature_json);
    if (here) return here;
    // The first layer in which something is wrong is the one to tell of.
    if (result.reason == Miss::kAbsent) result = std::move(here);
  }
  return result;
}

Lookup Store::read(std::string_view key) const {
  Lookup result;
  if (state_->layers.empty()) result.reason = Miss::kUncached;
  if (!is_sha256_hex(key)) return result;
  for (const auto& layer : state_->layers) {
    Lookup here = verify_entry(*layer, key);
    if (here) return here;
    if (result.reason == Miss::kAbsent) result = std::move(here);
  }
  return result;
}

Publication Store::publish(std::string_view key, std::string_view signature_json, std::string_view cubin,
                           std::string_view facts_json) const {
  using Result = Publication::Result;
  State& s = *state_;
  Metadata metadata;
  std::string json;
  try {
    const Signature signature = Signature::parse(signature_json);
    if (sha256_hex(signature_json) != key) return s.failed(Result::kInvalid, "the key is not the signature's");
    const CubinCheck check = check_cubin(cubin, signature.arch);
    if (check.result != CubinCheck::Result::kGood) {
      return s.failed(Result::kInvalid, "the cubin of " + signature.kernel + ": " + check.detail);
    }
    if (cubin.size() > kMaxCubinBytes) return s.failed(Result::kInvalid, "the cubin is too large");
    metadata = {.version = COMMFUSE_VERSION_STRING,
                .created = std::max<std::int64_t>(std::time(nullptr), 0),
                .cubin_sha256 = sha256_hex(cubin),
                .cubin_bytes = cubin.size(),
                .facts_json = std::string(facts_json),
                .signature_json = std::string(signature_json),
                .kernel = {},
                .arch = {}};
    json = metadata.to_json();
  } catch (const Error& e) {
    return s.failed(Result::kInvalid, e.what());
  }
  return s.store(key, signature_json, cubin, json);
}

Publication Store::import_entry(std::string_view key, const Hit& entry) const {
  const Lookup checked = verify_entry(key, entry);
  if (!checked) return state_->failed(Publication::Result::kInvalid, checked.detail);
  const std::string signature = Metadata::parse(entry.metadata_json).signature_json;
  return state_->store(key, signature, entry.cubin, entry.metadata_json);
}

std::vector<EntryInfo> Store::list() const {
  std::vector<EntryInfo> entries;
  for (const auto& layer : state_->layers) {
    for (EntryInfo& entry : list_entries(*layer)) {
      entry.writable = layer.get() == state_->writable;
      entries.push_back(std::move(entry));
    }
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const EntryInfo& a, const EntryInfo& b) { return a.key < b.key; });
  return entries;
}

GcReport Store::collect(const GcOptions& options) const {
  if (state_->writable == nullptr) return {};
  return collect_garbage(*state_->writable, state_->locks, options);
}

void Store::record(const Usage& usage) const {
  if (state_->writable == nullptr) return;
  const auto directory = state_->writable->open().directory;
  struct stat status {};
  if (!directory || ::fstat(directory->get(), &status) != 0) return;
  // As entries are: what the directory grants, its group's right to write only where it is shared on purpose.
  const unsigned granted = (status.st_mode & 0644u) | (is_group_shared(status) ? 0020u : 0u);
  record_usage(directory->get(), granted, state_->locks, usage);
}

Usage Store::usage() const {
  if (state_->writable == nullptr) return {};
  const auto directory = state_->writable->open().directory;
  return directory ? read_usage(directory->get()) : Usage{};
}

const std::vector<std::filesystem::path>& Store::layers() const noexcept { return state_->paths; }

const Directories& Store::directories() const noexcept { return state_->options.directories; }

const Locks& Store::locks() const noexcept { return state_->locks; }

Store::Counters Store::counters() const noexcept {
  const State& s = *state_;
  Counters c;
  c.hits = s.hits;
  for (std::size_t i = 0; i < s.misses.size(); ++i) c.misses[i] = s.misses[i];
  c.stored = s.stored;
  c.kept = s.kept;
  c.store_failed = s.store_failed;
  return c;
}

}  // namespace commfuse::cache
