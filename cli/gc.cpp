// commfuse gc: keep the cache within bounds.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/gc.hpp"
#include "cache/manifest.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/upkeep.hpp"

namespace commfuse::cli {
namespace {

struct Arguments {
  std::filesystem::path cache_dir;
  std::uint64_t max_bytes = 0;
  std::int64_t max_age_seconds = -1;
  std::vector<std::filesystem::path> keep;
  bool dry_run = false;
};

int collect(const Arguments& arguments, bool as_json) {
  cache::GcOptions options;
  options.max_bytes = arguments.max_bytes;
  if (arguments.max_age_seconds >= 0) options.max_age = std::chrono::seconds(arguments.max_age_seconds);
  if (!arguments.keep.empty()) {
    options.keep_only.emplace();
    for (const auto& file : arguments.keep) {
      for (const cache::Wanted& kernel : load_manifest(file).kernels) options.keep_only->insert(kernel.key);
    }
  }
  options.remove_damaged = true;
  options.dry_run = arguments.dry_run;
  const auto store = open_store(arguments.cache_dir);
  report_collection(*store, store->collect(options), arguments.dry_run, as_json);
  return kDone;
}

}  // namespace

void add_gc(CLI::App& app, Session& session) {
  CLI::App* command =
      add_command(app, session, "gc", "Remove from the cache what is damaged, left over, old, or beyond a bound",
                  "commfuse gc --max-bytes 500MiB --max-age 30d --dry-run");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--max-bytes", arguments->max_bytes,
                   "Remove what was used least recently until so much is left; 500MiB, 2GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  command->add_option("--max-age", arguments->max_age_seconds, "Remove what was not used for so long; 90m, 12h, 30d")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, std::int64_t>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {"w", 604800}}))
      ->check(CLI::NonNegativeNumber);
  command->add_option("--keep", arguments->keep, "Manifests; remove every kernel that none of them lists");
  command->add_flag("--dry-run", arguments->dry_run, "Say what would be removed, and remove nothing");
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [arguments, &session] { session.run = [arguments, &session] { return collect(*arguments, session.json); }; });
}

}  // namespace commfuse::cli
