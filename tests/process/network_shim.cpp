// Stands in for the file systems of a network: calls that the library makes are answered as such a file system would,
// for paths below those in a list, and passed on for all others. Linked into a test, or preloaded into a program.
//
//   COMMFUSE_SHIM_NFS    paths, ':' between them, that are on NFS
//   COMMFUSE_SHIM_LOCKS  "refuse": taking a lock fails with ENOLCK; "hang": on NFS it takes a minute
//   COMMFUSE_SHIM_RENAME "busy": renaming fails with EBUSY on NFS
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

constexpr long kNfs = 0x6969;

bool is(const char* variable, std::string_view value) {
  const char* text = std::getenv(variable);
  return text != nullptr && text == value;
}

bool on_nfs(std::string_view path) {
  const char* text = std::getenv("COMMFUSE_SHIM_NFS");
  std::string_view list = text == nullptr ? "" : text;
  while (!list.empty()) {
    const std::string_view prefix = list.substr(0, list.find(':'));
    list.remove_prefix(std::min(prefix.size() + 1, list.size()));
    if (!prefix.empty() && path.starts_with(prefix)) return true;
  }
  return false;
}

bool is_file_on_nfs(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0 && on_nfs({path, static_cast<std::size_t>(length)});
}

}  // namespace

extern "C" {

// statfs and statfs64 are one on 64-bit systems, as are fcntl and fcntl64; either may be what a program was linked to.
__attribute__((visibility("default"))) int statfs(const char* path, struct statfs* status) noexcept {
  const long result = ::syscall(SYS_statfs, path, status);
  if (result == 0 && on_nfs(path)) status->f_type = kNfs;
  return static_cast<int>(result);
}

__attribute__((visibility("default"))) int statfs64(const char* path, struct statfs64* status) noexcept {
  return statfs(path, reinterpret_cast<struct statfs*>(status));
}

__attribute__((visibility("default"))) int fcntl(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  if (command == F_OFD_SETLK || command == F_OFD_SETLKW || command == F_SETLK || command == F_SETLKW) {
    if (is("COMMFUSE_SHIM_LOCKS", "refuse")) {
      errno = ENOLCK;
      return -1;
    }
    if (is("COMMFUSE_SHIM_LOCKS", "hang") && is_file_on_nfs(descriptor)) ::sleep(60);
  }
  return static_cast<int>(::syscall(SYS_fcntl, descriptor, command, argument));
}

__attribute__((visibility("default"))) int fcntl64(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(descriptor, command, argument);
}

__attribute__((visibility("default"))) int renameat(int from_directory, const char* from, int to_directory,
                                                    const char* to) noexcept {
  if (is("COMMFUSE_SHIM_RENAME", "busy") && is_file_on_nfs(to_directory)) {
    errno = EBUSY;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_directory, from, to_directory, to, 0));
}

}  // extern "C"
