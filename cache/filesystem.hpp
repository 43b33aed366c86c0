// What kind of file system a path is on.
#pragma once

#include <filesystem>
#include <string>

namespace commfuse::cache {

struct FilesystemKind {
  std::string name;   ///< "ext4", "nfs", or the number in hexadecimal if it is not a known one
  bool local = true;  ///< locks work between all processes of the machine; false for those of a network and
                      ///< for those that are not known
};

/// Of the nearest ancestor of `path` that exists.
[[nodiscard]] FilesystemKind filesystem_of(const std::filesystem::path& path);

}  // namespace commfuse::cache
