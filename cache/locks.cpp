#include "cache/locks.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <mutex>
#include <vector>

#include "cache/filesystem.hpp"
#include "cache/sha256.hpp"
#include "cache/trust.hpp"

namespace commfuse::cache {
namespace {

namespace fs = std::filesystem;

struct Place {
  fs::path path;
  bool group_shared = false;
  std::string explanation;
};

std::string private_name() { return "commfuse-" + std::to_string(::geteuid()); }

std::vector<Place> places_for(const Directories& directories) {
  std::vector<Place> places;
  struct stat status {};
  if (!directories.writable.empty() && ::stat(directories.writable.c_str(), &status) == 0 && is_group_shared(status) &&
      filesystem_of(directories.writable).local) {
    places.push_back({directories.writable / "locks", true, "beside the cache, which a group shares"});
  }
  if (directories.runtime.is_absolute()) {
    places.push_back({directories.runtime / "commfuse", false, "in XDG_RUNTIME_DIR"});
  }
  places.push_back({fs::path("/dev/shm") / private_name(), false, "in shared memory"});
  places.push_back({fs::path("/tmp") / private_name(), false, "in /tmp"});
  return places;
}

// Opens the place, made if need be, and only if nobody can interfere with it.
FileDescriptor open_place(const Place& place) {
  if (!filesystem_of(place.path.parent_path()).local) return {};
  const mode_t mode = place.group_shared ? 02770 : 0700;
  if (::mkdir(place.path.c_str(), mode & 0777) == 0) {
    (void)::chmod(place.path.c_str(), mode);  // the umask must not keep the group out
  } else if (errno != EEXIST) {
    return {};
  }
  FileDescriptor directory(::open(place.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0) return {};
  const bool is_private = status.st_uid == ::geteuid() && (status.st_mode & 0077) == 0;
  if (place.group_shared ? why_untrusted(place.path, status, {}).has_value() : !is_private) return {};
  return directory;
}

int set_lock(int fd, short type, off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  int result;
  do {
    result = ::fcntl(fd, F_OFD_SETLK, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

// The byte of the lease file that stands for a key. Two keys with one byte (1 in 2^62) protect each other, as does one
// key in two caches.
off_t byte_of(std::string_view key) {
  std::uint64_t number = 0;
  std::from_chars(key.data(), key.data() + std::min<std::size_t>(key.size(), 16), number, 16);
  return static_cast<off_t>(number >> 2);
}

}  // namespace

KeyLock::KeyLock(FileDescriptor file, std::shared_ptr<const FileDescriptor> directory, std::string name) noexcept
    : file_(std::move(file)), directory_(std::move(directory)), name_(std::move(name)) {}

KeyLock::~KeyLock() {
  // Removed while still locked: whoever locks the file afterwards sees that it has no name any more (see try_lock).
  if (file_) ::unlinkat(directory_->get(), name_.c_str(), 0);
}

struct Locks::State {
  std::vector<Place> places;
  std::string why_not_beside_the_cache;  // where it matters to people
  std::string cache_id;                  // locks of different caches do not meet
  mutable std::mutex mutex;
  bool searched = false;
  Place chosen;
  std::shared_ptr<const FileDescriptor> directory;

  std::shared_ptr<const FileDescriptor> open() {
    const std::scoped_lock lock(mutex);
    if (!searched) {
      searched = true;
      for (const Place& place : places) {
        if (FileDescriptor found = open_place(place)) {
          chosen = place;
          directory = std::make_shared<const FileDescriptor>(std::move(found));
          break;
        }
      }
    }
    return directory;
  }

  FileDescriptor open_lock_file(const FileDescriptor& in, const std::string& name) const {
    const mode_t mode = chosen.group_shared ? 0660 : 0600;
    FileDescriptor file(::openat(in.get(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, mode));
    // Fails for the file of another user, which has the mode already.
    if (file && chosen.group_shared) (void)::fchmod(file.get(), mode);
    return file;
  }
};

Locks::Locks(const Directories& directories) : state_(std::make_unique<State>()) {
  state_->places = places_for(directories);
  if (!directories.writable.empty()) {
    const FilesystemKind kind = filesystem_of(directories.writable);
    if (!kind.local) {
      state_->why_not_beside_the_cache =
          "; the cache is on " + kind.name + ", where locks do not hold, so that machines do not exclude each other";
    }
  }
  state_->cache_id = sha256_hex(directories.writable.lexically_normal().string()).substr(0, 16);
}

Locks::~Locks() = default;

LockAttempt Locks::try_lock(std::string_view key) const {
  const auto directory = state_->open();
  if (!directory) return {LockAttempt::Result::kUnavailable, std::nullopt, "there is no place for locks"};
  const std::string name = state_->cache_id + "-" + std::string(key.substr(0, 32)) + ".lock";
  for (;;) {
    FileDescriptor file = state_->open_lock_file(*directory, name);
    if (!file) return {LockAttempt::Result::kUnavailable, std::nullopt, name + ": " + error_text(errno)};
    const int error = set_lock(file.get(), F_WRLCK, 0, 0);
    if (error == EAGAIN || error == EACCES) return {LockAttempt::Result::kBusy, std::nullopt, {}};
    if (error != 0) return {LockAttempt::Result::kUnavailable, std::nullopt, name + ": " + error_text(error)};
    // The previous holder may have removed the file between our open and our lock; then this is a lock on nothing.
    struct stat held {
    }, named{};
    if (::fstat(file.get(), &held) == 0 &&
        ::fstatat(directory->get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev) {
      return {LockAttempt::Result::kHeld, KeyLock(std::move(file), directory, name), {}};
    }
  }
}

Locks::Lease Locks::lease(std::span<const std::string> keys) const {
  const auto directory = state_->open();
  if (!directory) return {};
  FileDescriptor file = state_->open_lock_file(*directory, "leases");
  if (!file) return {};
  for (const std::string& key : keys) {
    // A key that is being removed this moment is not protected: it will be a miss, and compiled.
    (void)set_lock(file.get(), F_RDLCK, byte_of(key), 1);
  }
  return Lease(std::move(file));
}

std::optional<Locks::Lease> Locks::claim_for_removal(std::string_view key) const {
  const auto directory = state_->open();
  if (!directory) return Lease{};
  FileDescriptor file = state_->open_lock_file(*directory, "leases");
  if (!file) return Lease{};
  const int error = set_lock(file.get(), F_WRLCK, byte_of(key), 1);
  if (error == EAGAIN || error == EACCES) return std::nullopt;
  return Lease(std::move(file));
}

std::filesystem::path Locks::directory() const {
  const std::scoped_lock lock(state_->mutex);
  if (state_->searched) return state_->directory ? state_->chosen.path : std::filesystem::path{};
  for (const Place& place : state_->places) {
    if (filesystem_of(place.path.parent_path()).local) return place.path;
  }
  return {};
}

std::string Locks::explanation() const {
  const fs::path path = directory();
  for (const Place& place : state_->places) {
    if (place.path == path) return place.explanation + state_->why_not_beside_the_cache;
  }
  return "no local directory for locks can be written; kernels may be compiled more than once";
}

}  // namespace commfuse::cache
