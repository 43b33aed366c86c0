// Whose files may be run.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace commfuse::cache {

/// Why a directory (or pack file) with this owner and mode must not be used, or nothing if it may. A kernel from a
/// cache runs with the rights of this process, so nobody else may be able to put one there. Accepted are what belongs
/// to the effective user or to root and only its owner can write to, and a directory that its owner shares on purpose:
/// setgid, writable by a group this process is in, not by others. `trusted` lists what is accepted regardless.
[[nodiscard]] std::optional<std::string> why_untrusted(const std::filesystem::path& path, const struct stat& status,
                                                       const std::vector<std::filesystem::path>& trusted);

/// Whether the directory is shared with a group on purpose (setgid and writable by the group).
[[nodiscard]] bool is_group_shared(const struct stat& status) noexcept;

}  // namespace commfuse::cache
