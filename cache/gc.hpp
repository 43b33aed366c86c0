// Keeping the writable directory within bounds.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cache/layer.hpp"
#include "cache/locks.hpp"

namespace commfuse::cache {

struct GcOptions {
  /// Evict what was used least recently until this many bytes are left; 0: no bound.
  std::uint64_t max_bytes = 0;
  /// Remove what was not used for so long.
  std::optional<std::chrono::seconds> max_age;
  /// Remove everything but these keys.
  std::optional<std::set<std::string>> keep_only;
  /// Read every entry and remove the damaged ones.
  bool remove_damaged = false;
  /// What was used or written more recently stays, whatever the bounds say.
  std::chrono::seconds grace{600};
  /// Temporaries and halves of entries older than this were left behind by a process that died.
  std::chrono::seconds stale_after{3600};
  /// Report what would be removed, and remove nothing.
  bool dry_run = false;
};

struct GcReport {
  std::uint64_t entries = 0;  ///< found, whole ones
  std::uint64_t bytes = 0;    ///< of all files found
  std::uint64_t bytes_after = 0;
  std::vector<std::string> removed;       ///< keys, oldest first
  std::uint64_t damaged_removed = 0;      ///< of those
  std::uint64_t stale_files_removed = 0;  ///< temporaries and halves
  std::uint64_t spared = 0;               ///< should have gone, but is in use, being published, or could not be removed
};

/// Collects in one directory. What a running process is about to load is not taken: an entry stays while it was used
/// within `grace`, while a process that is working through a list with it leases it (Locks::lease), and while its key
/// is locked for compiling. Anything else that is taken from under a reader is a miss for it, never a wrong kernel,
/// because a kernel is read into memory whole and verified. The time of use is the modification time of the metadata,
/// which a hit renews; access times, which many systems do not keep, play no part. A time in the
/// future counts as now, one more than a day in the future as the oldest of all.
/// Never throws but for memory; a missing directory is an empty one.
[[nodiscard]] GcReport collect_garbage(const DirectoryLayer& directory, const Locks& locks, const GcOptions& options);

}  // namespace commfuse::cache
