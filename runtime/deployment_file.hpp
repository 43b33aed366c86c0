// Reading a deployment file from disk.
#pragma once

#include <filesystem>
#include <string>

namespace commfuse::runtime {

/// The content of a regular file of at most 1 MiB. Never waits: pipes and devices are refused before they are read.
/// Throws Error(kNotFound), Error(kIo) or Error(kInvalidInput).
[[nodiscard]] std::string read_deployment_file(const std::filesystem::path& file);

}  // namespace commfuse::runtime
