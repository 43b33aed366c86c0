// Writing one entry into the writable directory.
#pragma once

#include <string>
#include <string_view>

#include "cache/layer.hpp"

namespace commfuse::cache {

/// Creates `path` and what is missing above it, the last component with mode 0700. Throws std::system_error.
void create_cache_directory(const std::filesystem::path& path);

/// Writes the two files of an entry, the metadata last, each by AtomicFile, and syncs the directory. Permissions follow
/// those of the cache directory: what it grants to a group or to others, the entry grants, except that others never get
/// to write. Throws std::system_error; what was there before is then there still, or is a miss.
void write_entry(const FileDescriptor& directory, std::string_view key, std::string_view cubin,
                 const std::string& metadata_json);

}  // namespace commfuse::cache
