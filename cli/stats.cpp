// commfuse stats: the cache in numbers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cache/entry.hpp"
#include "cache/signature.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

struct Share {
  std::int64_t kernels = 0;
  std::uint64_t bytes = 0;

  void add(std::uint64_t more) {
    ++kernels;
    bytes += more;
  }
};

struct Stats {
  Share all;
  Share damaged;
  std::map<std::string, Share> layers, archs, compilers;
  std::int64_t oldest = 0, newest = 0, last_used = 0;  // seconds since 1970; 0: no kernel
  double compile_ms = 0;
};

/// What compiling the kernel took, as far as the entry tells.
double compile_ms(const cache::Metadata& metadata) {
  const json facts = json::parse(metadata.facts_json);
  const json* total = nullptr;
  if (facts.contains("phases_ms") && facts.at("phases_ms").is_object() && facts.at("phases_ms").contains("total")) {
    total = &facts.at("phases_ms").at("total");
  }
  return total != nullptr && total->is_number() ? total->get<double>() : 0;
}

Stats count(const cache::Store& store) {
  Stats stats;
  for (const auto& layer : store.layers()) stats.layers[layer.string()];
  for (const cache::EntryInfo& entry : store.list()) {
    if (!entry.problem.empty()) {
      stats.damaged.add(entry.disk_bytes);
      continue;
    }
    const cache::Metadata metadata = cache::Metadata::parse(entry.metadata_json);
    stats.all.add(entry.disk_bytes);
    stats.layers[entry.layer.string()].add(entry.disk_bytes);
    stats.archs[entry.arch].add(entry.disk_bytes);
    stats.compilers[cache::Signature::parse(metadata.signature_json).nvrtc_build].add(entry.disk_bytes);
    stats.oldest = stats.all.kernels == 1 ? entry.created_unix : std::min(stats.oldest, entry.created_unix);
    stats.newest = std::max(stats.newest, entry.created_unix);
    stats.last_used = std::max(stats.last_used, entry.last_used_unix);
    stats.compile_ms += compile_ms(metadata);
  }
  return stats;
}

json document_of(const std::map<std::string, Share>& shares) {
  json document = json::object();
  for (const auto& [name, share] : shares) document[name] = {{"kernels", share.kernels}, {"bytes", share.bytes}};
  return document;
}

void add_rows(const std::string& group, const std::map<std::string, Share>& shares, Table& table) {
  for (const auto& [name, share] : shares) {
    table.add({group, name, std::to_string(share.kernels), bytes_text(share.bytes)});
  }
}

int show_stats(const std::filesystem::path& cache_dir, bool as_json) {
  const auto store = open_store(cache_dir);
  const Stats stats = count(*store);
  if (as_json) {
    print_document({{"kernels", stats.all.kernels},
                    {"bytes", stats.all.bytes},
                    {"damaged", stats.damaged.kernels},
                    {"oldest", stats.oldest},
                    {"newest", stats.newest},
                    {"last_used", stats.last_used},
                    {"compile_ms", stats.compile_ms},
                    {"layers", document_of(stats.layers)},
                    {"archs", document_of(stats.archs)},
                    {"compilers", document_of(stats.compilers)}});
    return kDone;
  }
  Table table({{"BY"}, {"WHICH"}, {"KERNELS", Table::Align::kRight}, {"SIZE", Table::Align::kRight}});
  add_rows("layer", stats.layers, table);
  add_rows("arch", stats.archs, table);
  add_rows("compiler", stats.compilers, table);
  std::string text = table.empty() ? std::string() : table.text() + '\n';
  text += fmt::format("{}, {}, {} damaged", count_text(stats.all.kernels, "kernel"), bytes_text(stats.all.bytes),
                      stats.damaged.kernels);
  if (stats.all.kernels > 0) {
    text += fmt::format("; made {} to {} UTC, last used {}; they took {} to compile", moment_text(stats.oldest),
                        moment_text(stats.newest), moment_text(stats.last_used), time_text(stats.compile_ms));
  }
  print(text + '\n');
  return kDone;
}

}  // namespace

void add_stats(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "stats", "Show the cache in numbers: by layer, architecture, compiler",
                                  "commfuse stats --json");
  auto cache_dir = std::make_shared<std::filesystem::path>();
  command->add_option("--cache-dir", *cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [cache_dir, &session] { session.run = [cache_dir, &session] { return show_stats(*cache_dir, session.json); }; });
}

}  // namespace commfuse::cli
