// Files of the cache: bounded reads, and writes that appear whole or not at all.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace commfuse::cache {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;
  /// Closes and reports what close reported (NFS writes back here): 0 or errno.
  [[nodiscard]] int close() noexcept;

 private:
  int fd_ = -1;
};

/// What a read came to: `error` is 0, or errno, or EFBIG for a file above the bound, or EINVAL for something that is
/// not a regular file (a planted FIFO must not block the reader).
struct FileRead {
  int error = 0;
  std::string bytes;
};

/// Reads `name` relative to the directory `dir_fd` (AT_FDCWD with an absolute name: from the root). Never throws but
/// for memory; never waits for a writer.
[[nodiscard]] FileRead read_file(int dir_fd, const std::string& name, std::size_t max_bytes);

/// "No space left on device" for an errno.
[[nodiscard]] std::string error_text(int error);

/// A file that other processes see complete or not at all: written under a temporary name in the same directory,
/// synced, then renamed. The destructor removes the temporary if commit was not reached. All functions throw
/// std::system_error.
class AtomicFile {
 public:
  /// `dir_fd` must stay open while this object lives. `mode` is set regardless of the umask.
  AtomicFile(int dir_fd, std::string name, unsigned mode);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  /// Syncs and renames over whatever has the name.
  void commit();

  /// Whether a file name is that of a temporary, left behind if it is old.
  [[nodiscard]] static bool is_temporary(std::string_view file_name) noexcept;

 private:
  int dir_fd_;
  std::string name_;
  std::string temporary_;
  FileDescriptor file_;
};

/// Called with the name of each step of a publish once the step is done: "directory", "open", "half", "written",
/// "synced", "renamed", "dir-synced". Tests put a function here that kills the process; null otherwise.
using StepHook = void (*)(const char* step);
void set_step_hook(StepHook hook) noexcept;
void reach_step(const char* step);

}  // namespace commfuse::cache
