// commfuse list: what lies in the cache.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/facts.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"

namespace commfuse::cli {
namespace {

using cache::EntryInfo;
using nlohmann::json;

constexpr std::size_t kShownKey = 12;

struct Arguments {
  std::filesystem::path cache_dir;
  std::string sort = "key";
};

/// An entry with what it tells of its kernel; zeros for a damaged one.
struct Row {
  EntryInfo entry;
  std::int64_t registers = 0;
  std::int64_t instructions = 0;
  double compile_ms = 0;
};

std::vector<Row> rows_of(const cache::Store& store) {
  std::vector<Row> rows;
  for (EntryInfo& entry : store.list()) {
    Row row;
    if (entry.problem.empty()) {
      const json facts = json::parse(cache::Metadata::parse(entry.metadata_json).facts_json);
      row.registers = static_cast<std::int64_t>(number_in(facts, "resources", "registers"));
      row.instructions = static_cast<std::int64_t>(number_in(facts, "resources", "instructions"));
      row.compile_ms = number_in(facts, "phases_ms", "total");
    }
    row.entry = std::move(entry);
    rows.push_back(std::move(row));
  }
  return rows;
}

/// What is most worth a look comes first: the largest, the slowest, the oldest.
void sort_rows(std::vector<Row>& rows, const std::string& by) {
  const auto order = [&](const auto& weight) {
    std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return weight(a) > weight(b); });
  };
  if (by == "size") order([](const Row& row) { return row.entry.disk_bytes; });
  if (by == "time") order([](const Row& row) { return row.compile_ms; });
  if (by == "registers") order([](const Row& row) { return row.registers; });
  if (by == "age") order([](const Row& row) { return -row.entry.created_unix; });
  if (by == "used") order([](const Row& row) { return -row.entry.last_used_unix; });
}

json document_of(const cache::Store& store, const std::vector<Row>& rows, std::uint64_t bytes) {
  json document = {{"layers", json::array()}, {"entries", json::array()}, {"bytes", bytes}};
  for (const auto& layer : store.layers()) document["layers"].push_back(layer.string());
  for (const Row& row : rows) {
    const EntryInfo& entry = row.entry;
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
      item["registers"] = row.registers;
      item["instructions"] = row.instructions;
      item["compile_ms"] = row.compile_ms;
    } else {
      item["problem"] = entry.problem;
    }
    document["entries"].push_back(std::move(item));
  }
  return document;
}

std::string text_of(const cache::Store& store, const std::vector<Row>& rows, std::uint64_t bytes) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"KEY"},
               {"ARCH"},
               {"SIZE", kRight},
               {"REGS", kRight},
               {"COMPILED IN", kRight},
               {"CREATED (UTC)"},
               {"LAST USED"},
               {"KERNEL"}});
  std::size_t damaged = 0;
  for (const Row& row : rows) {
    const EntryInfo& entry = row.entry;
    const std::string key = entry.key.substr(0, kShownKey);
    if (!entry.problem.empty()) {
      ++damaged;
      table.add({key, "-", bytes_text(entry.disk_bytes), "-", "-", "-", "-", "damaged: " + entry.problem});
      continue;
    }
    table.add({key, entry.arch, bytes_text(entry.disk_bytes), row.registers > 0 ? std::to_string(row.registers) : "-",
               row.compile_ms > 0 ? time_text(row.compile_ms) : "-", moment_text(entry.created_unix),
               moment_text(entry.last_used_unix), entry.kernel});
  }
  std::string text = table.empty() ? std::string() : table.text() + '\n';
  text += count_text(static_cast<std::int64_t>(rows.size() - damaged), "kernel");
  if (damaged > 0) text += fmt::format(" and {} damaged (the next precompile replaces them)", damaged);
  text += fmt::format(", {}", bytes_text(bytes));
  for (const auto& layer : store.layers())
    text += fmt::format("{} {}", &layer == &store.layers()[0] ? " in" : " and", layer.string());
  return text + '\n';
}

int list_cache(const Arguments& arguments, bool as_json) {
  const auto store = open_store(arguments.cache_dir);
  std::vector<Row> rows = rows_of(*store);
  sort_rows(rows, arguments.sort);
  std::uint64_t bytes = 0;
  for (const Row& row : rows) bytes += row.entry.disk_bytes;
  if (as_json) {
    print_document(document_of(*store, rows, bytes));
  } else {
    print(text_of(*store, rows, bytes));
  }
  return kDone;
}

}  // namespace

void add_list(CLI::App& app, Session& session) {
  CLI::App* command =
      add_command(app, session, "list", "List the kernels in the cache", "commfuse list --cache-dir /opt/kernels");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--sort", arguments->sort,
                   "key, size, time (of compiling), registers, age, used: largest, slowest or longest ago first")
      ->check(CLI::IsMember({"key", "size", "time", "registers", "age", "used"}));
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [arguments, &session] { session.run = [arguments, &session] { return list_cache(*arguments, session.json); }; });
}

}  // namespace commfuse::cli
