// What several commands read.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "commfuse/spec.hpp"

namespace commfuse::cache {
class Store;
struct Manifest;
struct PackEntry;
}  // namespace commfuse::cache

namespace commfuse::cli {

/// Reads deployment files; all trouble is a UsageError.
[[nodiscard]] Deployment load_deployment(const std::filesystem::path& file);

/// Reads a manifest; all trouble is a UsageError.
[[nodiscard]] cache::Manifest load_manifest(const std::filesystem::path& file);

/// One kernel of a pack as the commands print it.
[[nodiscard]] nlohmann::json pack_entry_document(const cache::PackEntry& entry);

/// The architectures for a deployment: those given, else the deployment's, else that of the GPU of this machine. A
/// UsageError if there is none of all this, or one is no architecture.
[[nodiscard]] std::vector<std::string> archs_for(const Deployment& deployment, const std::vector<std::string>& given);

/// The cache at `cache_dir`, or where the environment says; its warnings go to stderr.
[[nodiscard]] std::unique_ptr<cache::Store> open_store(const std::filesystem::path& cache_dir);

}  // namespace commfuse::cli
