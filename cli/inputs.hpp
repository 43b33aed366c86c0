// Arguments that several commands take.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commfuse/spec.hpp"

namespace commfuse::cache {
class Store;
}

namespace commfuse::cli {

/// Reads deployment files; all trouble is a UsageError.
[[nodiscard]] Deployment load_deployment(const std::filesystem::path& file);

/// The architectures for a deployment: those given, else the deployment's, else that of the GPU of this machine. A
/// UsageError if there is none of all this, or one is no architecture.
[[nodiscard]] std::vector<std::string> archs_for(const Deployment& deployment, const std::vector<std::string>& given);

/// The cache at `cache_dir`, or where the environment says; its warnings go to stderr.
[[nodiscard]] std::unique_ptr<cache::Store> open_store(const std::filesystem::path& cache_dir);

}  // namespace commfuse::cli
