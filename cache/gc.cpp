#include "cache/gc.hpp"

#include <algorithm>
#include <ctime>
#include <map>

#include "cache/entry.hpp"
#include "cache/lookup.hpp"

namespace commfuse::cache {
namespace {

// Clocks of machines that share a directory differ by less.
constexpr std::int64_t kFuture = 86'400;

struct Found {
  std::string key;
  bool has_json = false, has_cubin = false;
  std::uint64_t bytes = 0;
  std::int64_t used = 0;  // of the metadata, or of the cubin if there is no metadata
};

class Collection {
 public:
  Collection(const DirectoryLayer& directory, const Locks& locks, const GcOptions& options)
      : directory_(directory), locks_(locks), options_(options), now_(std::time(nullptr)) {}

  GcReport run() {
    std::vector<Found> entries = scan();
    std::stable_sort(entries.begin(), entries.end(), [](const Found& a, const Found& b) { return a.used < b.used; });
    for (Found& entry : entries) {
      if (!entry.has_json || !entry.has_cubin) {
        if (age(entry) > options_.stale_after.count()) remove_half(entry);
        continue;
      }
      ++report_.entries;
      if (options_.remove_damaged && !verify_entry(directory_, entry.key)) {
        // Worth nothing to anybody, so it has no grace.
        if (remove(entry, true)) ++report_.damaged_removed;
        continue;
      }
      const bool unwanted = (options_.keep_only && !options_.keep_only->contains(entry.key)) ||
                            (options_.max_age && age(entry) >= options_.max_age->count());
      if (unwanted) {
        if (in_grace(entry)) {
          ++report_.spared;
        } else {
          remove(entry);
        }
      } else {
        kept_.push_back(entry);
      }
    }
    if (options_.max_bytes != 0) shrink();
    return std::move(report_);
  }

 private:
  std::vector<Found> scan() {
    std::map<std::string, Found> by_key;
    for (const ListedFile& file : directory_.list_with_temporaries()) {
      report_.bytes += file.bytes;
      report_.bytes_after += file.bytes;
      const std::string_view base = std::string_view(file.name).substr(3);
      if (AtomicFile::is_temporary(base)) {
        if (now_ - file.modified > options_.stale_after.count()) remove_stale_file(file);
        continue;
      }
      Found& found = by_key[std::string(base.substr(0, 64))];
      found.bytes += file.bytes;
      const std::int64_t modified = file.modified > now_ + kFuture ? 0 : std::min<std::int64_t>(file.modified, now_);
      if (base.ends_with(".json")) {
        found.has_json = true;
        found.used = modified;
      } else {
        found.has_cubin = true;
        if (!found.has_json) found.used = modified;
      }
    }
    std::vector<Found> entries;
    for (auto& [key, found] : by_key) {
      found.key = key;
      entries.push_back(std::move(found));
    }
    return entries;
  }

  void shrink() {
    // Somewhat below the bound, or every publish from here would have to collect again.
    const std::uint64_t target = options_.max_bytes - options_.max_bytes / 10;
    if (report_.bytes_after <= options_.max_bytes) return;
    for (const Found& entry : kept_) {
      if (report_.bytes_after <= target) return;
      if (in_grace(entry)) {
        ++report_.spared;
      } else {
        remove(entry);
      }
    }
  }

  [[nodiscard]] std::int64_t age(const Found& entry) const { return now_ - entry.used; }
  [[nodiscard]] bool in_grace(const Found& entry) const { return age(entry) < options_.grace.count(); }

  void removed(const Found& entry) {
    report_.removed.push_back(entry.key);
    report_.bytes_after -= entry.bytes;
  }

  bool remove(const Found& entry, bool damaged = false) {
    // One claim keeps out those who lease the entry, the other those who are publishing it this moment.
    const std::optional<Locks::Lease> claim = locks_.claim_for_removal(entry.key);
    const LockAttempt lock = locks_.try_lock(entry.key);
    if (!claim || lock.result == LockAttempt::Result::kBusy) {
      ++report_.spared;
      return false;
    }
    if (!options_.dry_run) {
      // Used since the scan.
      const std::optional<std::int64_t> modified = directory_.modified(metadata_name(entry.key));
      if (!damaged && modified && *modified > entry.used && *modified <= now_ + kFuture) {
        ++report_.spared;
        return false;
      }
      // The metadata first: without it there is no entry, whatever becomes of the rest.
      if (!directory_.remove(metadata_name(entry.key)) || !directory_.remove(cubin_name(entry.key))) {
        ++report_.spared;
        return false;
      }
    }
    removed(entry);
    return true;
  }

  void remove_half(const Found& entry) {
    const LockAttempt lock = locks_.try_lock(entry.key);
    if (lock.result == LockAttempt::Result::kBusy) return;
    const std::string name = entry.has_json ? metadata_name(entry.key) : cubin_name(entry.key);
    if (!options_.dry_run && !directory_.remove(name)) return;
    report_.bytes_after -= entry.bytes;
    ++report_.stale_files_removed;
  }

  void remove_stale_file(const ListedFile& file) {
    if (!options_.dry_run && !directory_.remove(file.name)) return;
    report_.bytes_after -= file.bytes;
    ++report_.stale_files_removed;
  }

  const DirectoryLayer& directory_;
  const Locks& locks_;
  const GcOptions& options_;
  const std::int64_t now_;
  std::vector<Found> kept_;
  GcReport report_;
};

}  // namespace

GcReport collect_garbage(const DirectoryLayer& directory, const Locks& locks, const GcOptions& options) {
  return Collection(directory, locks, options).run();
}

}  // namespace commfuse::cache
