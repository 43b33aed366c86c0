// commfuse verify: does the cache hold every kernel, intact?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/manifest.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/units.hpp"
#include "runtime/build.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

struct Arguments {
  std::filesystem::path file;
  std::filesystem::path manifest;
  std::vector<std::string> archs;
  std::filesystem::path cache_dir;
};

cache::Manifest manifest_of(const Arguments& arguments) {
  if (!arguments.manifest.empty()) return load_manifest(arguments.manifest);
  const Deployment deployment = load_deployment(arguments.file);
  return {deployment.name,
          runtime::wanted_kernels(deployment.kernels(archs_for(deployment, arguments.archs)), arguments.cache_dir)};
}

std::string why(const cache::MissingKernel& missing) {
  std::string text(cache::to_string(missing.reason));
  if (!missing.detail.empty()) text += ": " + missing.detail;
  if (!missing.explanation.empty()) text += "; " + missing.explanation;
  return text;
}

int verify_cache(const Arguments& arguments, bool as_json) {
  const cache::Manifest manifest = manifest_of(arguments);
  const auto store = open_store(arguments.cache_dir);
  const cache::Verification result = cache::verify(*store, manifest);
  if (as_json) {
    json document = {{"name", manifest.name},
                     {"complete", result.complete()},
                     {"kernels", result.total},
                     {"layers", json::array()},
                     {"missing", json::array()}};
    for (const auto& layer : store->layers()) document["layers"].push_back(layer.string());
    for (const cache::MissingKernel& missing : result.missing) {
      document["missing"].push_back({{"key", missing.kernel.key},
                                     {"kernel", missing.name},
                                     {"reason", cache::to_string(missing.reason)},
                                     {"detail", missing.detail},
                                     {"explanation", missing.explanation}});
    }
    print_document(document);
  } else {
    std::string text;
    for (const cache::MissingKernel& missing : result.missing) {
      text += fmt::format("missing {} {}\n        {}\n", missing.kernel.key.substr(0, 12), missing.name, why(missing));
    }
    text += fmt::format("{}: {} intact, {} missing\n", count_text(static_cast<std::int64_t>(result.total), "kernel"),
                        result.total - result.missing.size(), result.missing.size());
    print(text);
  }
  return result.complete() ? kDone : kFailed;
}

}  // namespace

void add_verify(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "verify",
                                  "Check that the cache holds every kernel intact; says what is missing and why",
                                  "commfuse verify --manifest llama.kernels.json");
  auto arguments = std::make_shared<Arguments>();
  auto* file = command->add_option("FILE", arguments->file, "Deployment file");
  auto* manifest = command->add_option("--manifest", arguments->manifest,
                                       "List of kernels that precompile wrote; needs no compiler");
  auto* archs = command->add_option("--arch", arguments->archs,
                                    "Architectures for FILE, else the file's, else that of the GPU here");
  archs->delimiter(',')->needs(file);
  file->excludes(manifest);
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback([arguments, file, manifest, &session] {
    if (file->empty() && manifest->empty()) throw CLI::RequiredError("FILE or --manifest");
    session.run = [arguments, &session] { return verify_cache(*arguments, session.json); };
  });
}

}  // namespace commfuse::cli
