#include "cache/file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <system_error>

namespace commfuse::cache {
namespace {

std::atomic<StepHook> step_hook{nullptr};

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

std::string random_hex() {
  std::uint64_t bits = 0;
  // Only uniqueness matters: O_EXCL catches a collision.
  if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof bits)) {
    static std::atomic<std::uint64_t> counter{0};
    bits = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&bits)) + (++counter << 32);
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(bits));
  return text;
}

// A write beyond the process's file size limit (RLIMIT_FSIZE) raises SIGXFSZ, whose default ends the process. Held back
// for this thread and taken from the queue, it leaves the plain error EFBIG.
class WithoutFileSizeSignal {
 public:
  WithoutFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutFileSizeSignal() {
    const timespec at_once{0, 0};
    if (!was_pending_) (void)sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutFileSizeSignal(const WithoutFileSizeSignal&) = delete;
  WithoutFileSizeSignal& operator=(const WithoutFileSizeSignal&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

int sync_file(int fd) {
  int result;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileDescriptor::reset() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

int FileDescriptor::close() noexcept {
  if (fd_ < 0) return 0;
  return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
}

FileRead read_file(int dir_fd, const std::string& name, std::size_t max_bytes) {
  const FileDescriptor file(::openat(dir_fd, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return {errno, {}};
  struct stat status;
  if (::fstat(file.get(), &status) != 0) return {errno, {}};
  if (!S_ISREG(status.st_mode)) return {EINVAL, {}};
  if (static_cast<std::uint64_t>(status.st_size) > max_bytes) return {EFBIG, {}};
  FileRead result;
  result.bytes.resize(static_cast<std::size_t>(status.st_size));
  std::size_t filled = 0;
  while (filled < result.bytes.size()) {
    const ssize_t n = ::read(file.get(), result.bytes.data() + filled, result.bytes.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return {errno, {}};
    if (n == 0) break;  // cut while being read: the caller's checks see a short file
    filled += static_cast<std::size_t>(n);
  }
  result.bytes.resize(filled);
  return result;
}

std::string error_text(int error) { return std::generic_category().message(error); }

AtomicFile::AtomicFile(int dir_fd, std::string name, unsigned mode)
    : dir_fd_(dir_fd),
      name_(std::move(name)),
      temporary_("." + name_ + "." + std::to_string(::getpid()) + "." + random_hex() + ".tmp") {
  file_ =
      FileDescriptor(::openat(dir_fd_, temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file_) {
    const int error = errno;
    temporary_.clear();
    fail("create " + name_, error);
  }
  // The umask of whoever runs us must not make a group-shared cache private. Some network file systems refuse; the
  // entry is then as the umask left it.
  (void)::fchmod(file_.get(), mode);
  reach_step("open");
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlinkat(dir_fd_, temporary_.c_str(), 0);
}

void AtomicFile::write(std::string_view bytes) {
  const WithoutFileSizeSignal guard;
  // Two writes at least, so that tests can stop between them.
  const std::size_t half = bytes.size() / 2;
  std::size_t written = 0;
  while (written < bytes.size()) {
    const std::size_t end = written < half ? half : bytes.size();
    const ssize_t n = ::write(file_.get(), bytes.data() + written, end - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write " + name_, errno);
    written += static_cast<std::size_t>(n);
    if (written == half) reach_step("half");
  }
  reach_step("written");
}

void AtomicFile::commit() {
  if (const int error = sync_file(file_.get())) fail("sync " + name_, error);
  if (const int error = file_.close()) fail("close " + name_, error);
  reach_step("synced");
  if (::renameat(dir_fd_, temporary_.c_str(), dir_fd_, name_.c_str()) != 0) fail("rename " + name_, errno);
  temporary_.clear();
  reach_step("renamed");
}

bool AtomicFile::is_temporary(std::string_view file_name) noexcept {
  return file_name.starts_with('.') && file_name.ends_with(".tmp");
}

void set_step_hook(StepHook hook) noexcept { step_hook.store(hook); }

void reach_step(const char* step) {
  if (const StepHook hook = step_hook.load(std::memory_order_relaxed)) hook(step);
}

}  // namespace commfuse::cache
