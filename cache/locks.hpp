// Agreement between the processes of one machine: who compiles a key, and which keys are about to be read.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/directory.hpp"
#include "cache/file.hpp"

namespace commfuse::cache {

/// The right to compile one key. The kernel takes it back when the process dies, whatever it died of. Note that a child
/// made by fork shares it until both have let go.
class KeyLock {
 public:
  KeyLock(FileDescriptor file, std::shared_ptr<const FileDescriptor> directory, std::string name) noexcept;
  KeyLock(KeyLock&&) noexcept = default;
  KeyLock& operator=(KeyLock&&) = delete;
  ~KeyLock();

 private:
  FileDescriptor file_;
  std::shared_ptr<const FileDescriptor> directory_;
  std::string name_;
};

struct LockAttempt {
  enum class Result : int {
    kHeld,         ///< `lock` is set
    kBusy,         ///< somebody else holds it
    kUnavailable,  ///< locks do not work here; compile without
  };
  Result result = Result::kUnavailable;
  std::optional<KeyLock> lock;
  std::string detail;  ///< for kUnavailable
};

/// Locks for one cache. They are an optimisation: nothing is wrong without them, only compiled more than once. They lie
/// in a directory of their own on a local file system, because locks on network file systems hang, fail, or hold on one
/// machine only. All functions may be called from any thread; locks of two threads exclude each other like those of two
/// processes. Nothing is created before the first lock.
///
/// The directory is, in this order: `locks` in the cache directory if that is shared with a group on purpose and on a
/// local file system; `commfuse` in XDG_RUNTIME_DIR; /dev/shm/commfuse-UID; /tmp/commfuse-UID. All but the first are
/// private (0700, of the effective user; anything else found there is passed over).
class Locks {
 public:
  explicit Locks(const Directories& directories);
  ~Locks();
  Locks(const Locks&) = delete;
  Locks& operator=(const Locks&) = delete;

  /// Never waits. The file is removed when the lock is released; one left by a killed process is used again.
  [[nodiscard]] LockAttempt try_lock(std::string_view key) const;

  /// Keeps entries from eviction while it lives (see gc.hpp), as far as locks work; the kernel ends it with the
  /// process.
  class Lease {
   public:
    Lease() = default;
    explicit Lease(FileDescriptor file) noexcept : file_(std::move(file)) {}

   private:
    FileDescriptor file_;
  };
  [[nodiscard]] Lease lease(std::span<const std::string> keys) const;

  /// For the collector: the right to remove `key`, or nothing while somebody leases it. If locks do not work, the right
  /// is always given.
  [[nodiscard]] std::optional<Lease> claim_for_removal(std::string_view key) const;

  /// Where locks will be or are, and why there; an empty path if nowhere. For people.
  [[nodiscard]] std::filesystem::path directory() const;
  [[nodiscard]] std::string explanation() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace commfuse::cache
