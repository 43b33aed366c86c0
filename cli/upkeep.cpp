#include "cli/upkeep.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cache/gc.hpp"
#include "cache/store.hpp"
#include "cli/output.hpp"
#include "cli/units.hpp"

namespace commfuse::cli {

void report_collection(const cache::Store& store, const cache::GcReport& report, bool dry_run, bool as_json) {
  const std::string folder = store.directories().writable.string();
  if (as_json) {
    print_document({{"cache_dir", folder},
                    {"dry_run", dry_run},
                    {"entries", report.entries},
                    {"bytes", report.bytes},
                    {"bytes_after", report.bytes_after},
                    {"removed", report.removed},
                    {"damaged_removed", report.damaged_removed},
                    {"stale_files_removed", report.stale_files_removed},
                    {"spared", report.spared}});
    return;
  }
  std::string text;
  for (const std::string& key : report.removed) text += key + '\n';
  text += fmt::format(
      "{} {} of {}, {} of them damaged, and {}; {} left of {} in {}\n", dry_run ? "would remove" : "removed",
      count_text(static_cast<std::int64_t>(report.removed.size()), "kernel"), report.entries, report.damaged_removed,
      count_text(static_cast<std::int64_t>(report.stale_files_removed), "left-over file"),
      bytes_text(report.bytes_after), bytes_text(report.bytes), folder.empty() ? "no cache" : folder);
  if (report.spared > 0) {
    text += fmt::format("{} stayed: in use or used a moment ago, or not removable\n",
                        count_text(static_cast<std::int64_t>(report.spared), "kernel"));
  }
  print(text);
}

}  // namespace commfuse::cli
