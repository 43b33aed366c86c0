#include "runtime/exchange/private_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

namespace commfuse::runtime {
namespace {

constexpr std::string_view kLockSuffix = ".lock";
constexpr std::string_view kSocketSuffix = ".sock";

std::string with(const std::string& name, std::string_view suffix) { return name + std::string(suffix); }

/// The locked file NAME.lock, or a closed descriptor with `holder` telling who has it. A lock on a file that its last
/// holder has removed meanwhile is worth nothing, hence the comparison with what the name means now.
Descriptor try_lock(int directory, const std::string& name, int flags, int& error) {
  Descriptor file(::openat(directory, with(name, kLockSuffix).c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    error = errno;
    return {};
  }
  struct stat held = {}, named = {};
  if (::fstat(file.get(), &held) != 0 ||
      ::fstatat(directory, with(name, kLockSuffix).c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 ||
      held.st_ino != named.st_ino || held.st_dev != named.st_dev) {
    error = EWOULDBLOCK;
    return {};
  }
  return file;
}

void remove_files(int directory, const std::string& name) {
  ::unlinkat(directory, with(name, kSocketSuffix).c_str(), 0);
  ::unlinkat(directory, with(name, kLockSuffix).c_str(), 0);
}

}  // namespace

PrivateDirectory::PrivateDirectory(std::filesystem::path path) : path_(std::move(path)) {
  const std::string what = "cannot use folder '" + path_.string() + "' for meeting other ranks";
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(Code::kIo, what, errno_text(errno), "Name a folder of your own in COMMFUSE_EXCHANGE_DIR");
  }
  directory_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory_.is_open()) throw Error(Code::kIo, what, errno_text(errno), "It must be a folder, not a link to one");
  struct stat status = {};
  if (::fstat(directory_.get(), &status) != 0) throw Error(Code::kIo, what, errno_text(errno));
  if (status.st_uid != ::geteuid()) {
    throw Error(Code::kInvalidArgument, what, "it belongs to user " + std::to_string(status.st_uid),
                "Remove it, or name a folder of your own in COMMFUSE_EXCHANGE_DIR");
  }
  if ((status.st_mode & 077) != 0) {
    throw Error(Code::kInvalidArgument, what, "others may enter it", "Make it private: chmod 700 " + path_.string());
  }
}

std::string PrivateDirectory::short_path(const std::string& name) const {
  return "/proc/self/fd/" + std::to_string(directory_.get()) + "/" + name;
}

HeldName::HeldName(const PrivateDirectory& directory, std::string name, Deadline deadline)
    : directory_(directory), name_(std::move(name)) {
  for (;;) {
    int error = 0;
    lock_ = try_lock(directory_.descriptor(), name_, O_CREAT, error);
    if (lock_.is_open()) break;
    const std::string place = (directory_.path() / with(name_, kLockSuffix)).string();
    if (error != EWOULDBLOCK && error != EINTR) {
      throw Error(Code::kIo, "cannot lock '" + place + "'", errno_text(error));
    }
    if (Clock::now() >= deadline) {
      throw Error(Code::kBusy, "cannot lock '" + place + "'", "another process gathers a group of the same name there",
                  "Give each group of each job its own name");
    }
    std::this_thread::sleep_for(Timeout(5));
  }
  ::unlinkat(directory_.descriptor(), with(name_, kSocketSuffix).c_str(), 0);
}

HeldName::~HeldName() { remove_files(directory_.descriptor(), name_); }

void sweep_leftovers(const PrivateDirectory& directory) {
  Descriptor again(::openat(directory.descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again.is_open()) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(again.get()), ::closedir);
  if (!listing) return;
  (void)again.release();
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view file = entry->d_name;
    if (file.ends_with(kLockSuffix)) names.emplace_back(file.substr(0, file.size() - kLockSuffix.size()));
  }
  for (const std::string& name : names) {
    int error = 0;
    const Descriptor lock = try_lock(directory.descriptor(), name, 0, error);
    if (lock.is_open()) remove_files(directory.descriptor(), name);
  }
}

}  // namespace commfuse::runtime
