#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "commfuse/exchange.hpp"

namespace commfuse {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint64_t namespace_of(const char* name) {
  struct stat status = {};
  return ::stat((std::string("/proc/self/ns/") + name).c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

HostIdentity this_host() {
  HostIdentity host;
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) == 0) host.name = name;
  // One value for a running kernel, the same in all of its containers, and new at each boot. Machine ids are copied
  // along with disk images, host names are whatever a container likes.
  host.host = first_line("/proc/sys/kernel/random/boot_id");
  if (host.host.empty()) host.host = first_line("/etc/machine-id") + "/" + host.name;
  host.mount_namespace = namespace_of("mnt");
  host.pid_namespace = namespace_of("pid");
  host.ipc_namespace = namespace_of("ipc");
  host.user_namespace = namespace_of("user");
  host.user = ::geteuid();
  host.process = static_cast<std::uint32_t>(::getpid());
  return host;
}

std::filesystem::path default_exchange_directory() {
  const char* runtime_directory = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_directory != nullptr && *runtime_directory == '/')
    return std::filesystem::path(runtime_directory) / "commfuse";
  return "/tmp/commfuse-" + std::to_string(::geteuid());
}

}  // namespace commfuse
