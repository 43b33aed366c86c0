#include "cache/layer.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "cache/sha256.hpp"
#include "cache/trust.hpp"

namespace commfuse::cache {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};
using DirectoryStream = std::unique_ptr<DIR, CloseDirectory>;

DirectoryStream open_stream(int dir_fd, const char* name) {
  FileDescriptor fd(::openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return nullptr;
  DIR* stream = ::fdopendir(fd.get());
  if (stream != nullptr) (void)fd.release();  // the stream closes it
  return DirectoryStream(stream);
}

}  // namespace

bool is_entry_directory(std::string_view name) noexcept {
  return name.size() == 2 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_entry_file(std::string_view name) noexcept {
  return is_sha256_hex(name.substr(0, 64)) && (name.substr(64) == ".json" || name.substr(64) == ".cubin");
}

DirectoryLayer::DirectoryLayer(std::filesystem::path path, std::vector<std::filesystem::path> trusted, Warn warn)
    : Layer(std::move(path)), trusted_(std::move(trusted)), warn_(std::move(warn)) {}

DirectoryLayer::Opened DirectoryLayer::open() const {
  const std::scoped_lock lock(mutex_);
  struct stat by_name;
  if (::stat(path().c_str(), &by_name) != 0) return {nullptr, errno, {}};
  if (directory_) {
    struct stat held;
    if (::fstat(directory_->get(), &held) == 0 && held.st_dev == by_name.st_dev && held.st_ino == by_name.st_ino) {
      return {directory_, 0, {}};
    }
    directory_ = nullptr;
  }
  auto fd = std::make_shared<FileDescriptor>(::open(path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status;
  if (!*fd || ::fstat(fd->get(), &status) != 0) return {nullptr, errno, {}};
  if (const auto why = why_untrusted(path(), status, trusted_)) {
    if (refused_ != *why && warn_) {
      warn_("cache directory '" + path().string() + "' is not used: " + *why +
            ". Take the write permission away, or name it in COMMFUSE_CACHE_TRUST if that is intended");
    }
    refused_ = *why;
    return {nullptr, EACCES, *why};
  }
  directory_ = std::move(fd);
  return {directory_, 0, {}};
}

FileRead DirectoryLayer::read(const std::string& name, std::size_t max_bytes) const {
  const Opened opened = open();
  // A layer that is refused is as if it were not there; the warning has said so.
  if (!opened.directory) return {opened.refused.empty() ? opened.error : ENOENT, {}};
  return read_file(opened.directory->get(), name, max_bytes);
}

std::vector<ListedFile> DirectoryLayer::scan(bool temporaries) const {
  std::vector<ListedFile> files;
  const auto directory = open().directory;
  if (!directory) return files;
  const DirectoryStream top = open_stream(directory->get(), ".");
  if (!top) return files;
  while (const dirent* sub = ::readdir(top.get())) {
    const std::string sub_name = sub->d_name;
    if (!is_entry_directory(sub_name)) continue;
    const DirectoryStream stream = open_stream(directory->get(), sub_name.c_str());
    if (!stream) continue;
    while (const dirent* file = ::readdir(stream.get())) {
      const std::string name = file->d_name;
      const bool of_entry = is_entry_file(name) && name.starts_with(sub_name);
      if (!of_entry && !(temporaries && AtomicFile::is_temporary(name))) continue;
      struct stat status;
      if (::fstatat(::dirfd(stream.get()), name.c_str(), &status, 0) != 0 || !S_ISREG(status.st_mode)) continue;
      files.push_back({sub_name + "/" + name, static_cast<std::uint64_t>(status.st_size), status.st_mtime});
    }
  }
  return files;
}

bool DirectoryLayer::remove(const std::string& name) const {
  const auto directory = open().directory;
  return directory && (::unlinkat(directory->get(), name.c_str(), 0) == 0 || errno == ENOENT);
}

std::optional<std::int64_t> DirectoryLayer::modified(const std::string& name) const {
  const auto directory = open().directory;
  struct stat status;
  if (!directory || ::fstatat(directory->get(), name.c_str(), &status, 0) != 0) return std::nullopt;
  return status.st_mtime;
}

void DirectoryLayer::touch(const std::string& name) const {
  const auto directory = open().directory;
  if (!directory) return;
  struct stat status;
  if (::fstatat(directory->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return;
  const std::time_t now = std::time(nullptr);
  // A time in the future (another machine's clock) is renewed as well, or it would protect the entry for ever.
  if (status.st_mtime <= now && now - status.st_mtime < 60) return;
  const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
  (void)::utimensat(directory->get(), name.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

}  // namespace commfuse::cache
