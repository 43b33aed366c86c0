// commfuse clean: empty the cache.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>

#include "cache/gc.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/upkeep.hpp"

namespace commfuse::cli {
namespace {

int clean(const std::filesystem::path& cache_dir, bool dry_run, bool as_json) {
  cache::GcOptions options;
  options.keep_only.emplace();
  options.grace = std::chrono::seconds(0);
  options.remove_damaged = true;
  options.dry_run = dry_run;
  const auto store = open_store(cache_dir);
  const cache::GcReport report = store->collect(options);
  report_collection(*store, report, dry_run, as_json);
  return report.spared == 0 ? kDone : kFailed;
}

}  // namespace

void add_clean(CLI::App& app, Session& session) {
  CLI::App* command =
      add_command(app, session, "clean", "Remove every kernel from the cache folder; read-only layers stay",
                  "commfuse clean --cache-dir /opt/kernels --dry-run");
  auto cache_dir = std::make_shared<std::filesystem::path>();
  auto dry_run = std::make_shared<bool>(false);
  command->add_flag("--dry-run", *dry_run, "Say what would be removed, and remove nothing");
  command->add_option("--cache-dir", *cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback([cache_dir, dry_run, &session] {
    session.run = [cache_dir, dry_run, &session] { return clean(*cache_dir, *dry_run, session.json); };
  });
}

}  // namespace commfuse::cli
