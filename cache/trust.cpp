#include "cache/trust.hpp"

#include <unistd.h>

#include <algorithm>

namespace commfuse::cache {
namespace {

bool in_group(gid_t group) {
  if (group == ::getegid()) return true;
  const int count = ::getgroups(0, nullptr);
  if (count <= 0) return false;
  std::vector<gid_t> groups(static_cast<std::size_t>(count));
  const int filled = ::getgroups(count, groups.data());
  return filled > 0 && std::find(groups.begin(), groups.begin() + filled, group) != groups.begin() + filled;
}

}  // namespace

bool is_group_shared(const struct stat& status) noexcept {
  return S_ISDIR(status.st_mode) && (status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IWGRP) != 0;
}

std::optional<std::string> why_untrusted(const std::filesystem::path& path, const struct stat& status,
                                         const std::vector<std::filesystem::path>& trusted) {
  const std::filesystem::path normal = path.lexically_normal();
  const auto named = [&](const std::filesystem::path& allowed) {
    return (allowed / "").lexically_normal() == (normal / "").lexically_normal();
  };
  if (std::any_of(trusted.begin(), trusted.end(), named)) return std::nullopt;

  if ((status.st_mode & S_IWOTH) != 0) return "everybody can write to it";
  const bool shared = is_group_shared(status) && (::geteuid() == 0 || in_group(status.st_gid));
  if (shared) return std::nullopt;
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return "it belongs to another user (uid " + std::to_string(status.st_uid) + ")";
  }
  if ((status.st_mode & S_IWGRP) != 0) return "its group can write to it and it is not setgid";
  return std::nullopt;
}

}  // namespace commfuse::cache
