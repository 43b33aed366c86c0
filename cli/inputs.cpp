#include "cli/inputs.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cache/manifest.hpp"
#include "cache/pack.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/progress.hpp"
#include "commfuse/engine.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cli {

Deployment load_deployment(const std::filesystem::path& file) {
  try {
    return Deployment::load(file);
  } catch (const Error& error) {
    throw UsageError(error);
  }
}

cache::Manifest load_manifest(const std::filesystem::path& file) {
  try {
    return cache::Manifest::load(file);
  } catch (const Error& error) {
    throw UsageError(error);
  }
}

nlohmann::json pack_entry_document(const cache::PackEntry& entry) {
  return {{"key", entry.key},
          {"kernel", entry.kernel},
          {"arch", entry.arch},
          {"cubin_bytes", entry.cubin_bytes},
          {"cubin_sha256", entry.cubin_sha256}};
}

std::vector<std::string> archs_for(const Deployment& deployment, const std::vector<std::string>& given) {
  std::vector<std::string> archs = given.empty() ? deployment.arch : given;
  if (archs.empty()) {
    try {
      archs = {current_arch()};
    } catch (const Error& error) {
      throw UsageError(Error(Code::kInvalidArgument,
                             fmt::format("no architecture to compile deployment '{}' for", deployment.name),
                             fmt::format("none was given, the file has no \"arch\" key, and this machine's GPU cannot "
                                         "be asked ({})",
                                         error.what()),
                             "name one or more, for example --arch sm_90a,sm_100a"));
    }
  }
  try {
    (void)deployment.kernels(archs);
  } catch (const Error& error) {
    throw UsageError(error);
  }
  return archs;
}

std::unique_ptr<cache::Store> open_store(const std::filesystem::path& cache_dir) {
  cache::StoreOptions options;
  options.directories = cache::find_directories(cache::Environment::of_process(), cache_dir);
  options.warn = [](std::string_view message) { message_on_stderr(fmt::format("commfuse: warning: {}\n", message)); };
  for (const std::string& warning : options.directories.warnings) options.warn(warning);
  return std::make_unique<cache::Store>(std::move(options));
}

}  // namespace commfuse::cli
