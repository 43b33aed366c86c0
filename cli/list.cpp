// commfuse list: what lies in the cache.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"

namespace commfuse::cli {
namespace {

using cache::EntryInfo;
using nlohmann::json;

constexpr std::size_t kShownKey = 12;

json document_of(const cache::Store& store, const std::vector<EntryInfo>& entries, std::uint64_t bytes) {
  json document = {{"layers", json::array()}, {"entries", json::array()}, {"bytes", bytes}};
  for (const auto& layer : store.layers()) document["layers"].push_back(layer.string());
  for (const EntryInfo& entry : entries) {
    json item = {{"key", entry.key},
                 {"layer", entry.layer.string()},
                 {"writable", entry.writable},
                 {"disk_bytes", entry.disk_bytes}};
    if (entry.problem.empty()) {
      item["kernel"] = entry.kernel;
      item["arch"] = entry.arch;
      item["cubin_bytes"] = entry.cubin_bytes;
      item["created"] = entry.created_unix;
      item["last_used"] = entry.last_used_unix;
    } else {
      item["problem"] = entry.problem;
    }
    document["entries"].push_back(std::move(item));
  }
  return document;
}

std::string text_of(const cache::Store& store, const std::vector<EntryInfo>& entries, std::uint64_t bytes) {
  Table table({{"KEY"}, {"ARCH"}, {"SIZE", Table::Align::kRight}, {"CREATED (UTC)"}, {"LAST USED"}, {"KERNEL"}});
  std::size_t damaged = 0;
  for (const EntryInfo& entry : entries) {
    const std::string key = entry.key.substr(0, kShownKey);
    if (!entry.problem.empty()) {
      ++damaged;
      table.add({key, "-", bytes_text(entry.disk_bytes), "-", "-", "damaged: " + entry.problem});
      continue;
    }
    table.add({key, entry.arch, bytes_text(entry.disk_bytes), moment_text(entry.created_unix),
               moment_text(entry.last_used_unix), entry.kernel});
  }
  std::string text = table.empty() ? std::string() : table.text() + '\n';
  text += count_text(static_cast<std::int64_t>(entries.size() - damaged), "kernel");
  if (damaged > 0) text += fmt::format(" and {} damaged (the next precompile replaces them)", damaged);
  text += fmt::format(", {}", bytes_text(bytes));
  for (const auto& layer : store.layers())
    text += fmt::format("{} {}", &layer == &store.layers()[0] ? " in" : " and", layer.string());
  return text + '\n';
}

int list_cache(const std::filesystem::path& cache_dir, bool as_json) {
  const auto store = open_store(cache_dir);
  const std::vector<EntryInfo> entries = store->list();
  std::uint64_t bytes = 0;
  for (const EntryInfo& entry : entries) bytes += entry.disk_bytes;
  if (as_json) {
    print_document(document_of(*store, entries, bytes));
  } else {
    print(text_of(*store, entries, bytes));
  }
  return kDone;
}

}  // namespace

void add_list(CLI::App& app, Session& session) {
  CLI::App* command =
      add_command(app, session, "list", "List the kernels in the cache", "commfuse list --cache-dir /opt/kernels");
  auto cache_dir = std::make_shared<std::filesystem::path>();
  command->add_option("--cache-dir", *cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [cache_dir, &session] { session.run = [cache_dir, &session] { return list_cache(*cache_dir, session.json); }; });
}

}  // namespace commfuse::cli
