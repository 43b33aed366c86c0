// commfuse stats: the cache in numbers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cache/entry.hpp"
#include "cache/signature.hpp"
#include "cache/store.hpp"
#include "cache/usage.hpp"
#include "cli/command.hpp"
#include "cli/facts.hpp"
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
  std::map<std::string, double> compile_ms;            // by phase, of the kernels that are there
  cache::Usage usage;                                  // of the folder, since it was made
};

constexpr std::array kPhases = {"total", "front_end", "nvvm", "ptxas"};

Stats count(const cache::Store& store) {
  Stats stats;
  stats.usage = store.usage();
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
    const json facts = json::parse(metadata.facts_json);
    for (const char* phase : kPhases) stats.compile_ms[phase] += number_in(facts, "phases_ms", phase);
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

/// "1.25 s (front_end 600 ms, nvvm 200 ms, ptxas 450 ms)"
std::string times_text(const std::map<std::string, double>& by_phase) {
  std::string text, phases;
  for (const char* phase : kPhases) {
    const auto time = by_phase.find(phase);
    const double milliseconds = time == by_phase.end() ? 0 : time->second;
    if (phase == kPhases.front()) {
      text = time_text(milliseconds);
    } else if (milliseconds > 0) {
      phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", phase, time_text(milliseconds));
    }
  }
  return phases.empty() ? text : fmt::format("{} ({})", text, phases);
}

std::string usage_text(const cache::Usage& usage) {
  if (usage.empty()) return {};
  std::uint64_t missed = 0;
  std::string reasons;
  for (const auto& [reason, count] : usage.misses) {
    missed += count;
    reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ", count, reason);
  }
  std::string text = fmt::format("Since it was made: {} found, {} missed", usage.hits, missed);
  if (!reasons.empty()) text += fmt::format(" ({})", reasons);
  text += fmt::format("; {} compiled", usage.compiled);
  if (usage.compiled > 0) text += fmt::format(" in {}", times_text(usage.compile_ms));
  return text + fmt::format(", {} failed\n", usage.failed);
}

int show_stats(const std::filesystem::path& cache_dir, bool as_json) {
  const auto store = open_store(cache_dir);
  Stats stats = count(*store);
  if (as_json) {
    print_document({{"kernels", stats.all.kernels},
                    {"bytes", stats.all.bytes},
                    {"damaged", stats.damaged.kernels},
                    {"oldest", stats.oldest},
                    {"newest", stats.newest},
                    {"last_used", stats.last_used},
                    {"compile_ms", stats.compile_ms["total"]},
                    {"phases_ms", stats.compile_ms},
                    {"usage",
                     {{"hits", stats.usage.hits},
                      {"misses", stats.usage.misses},
                      {"compiled", stats.usage.compiled},
                      {"failed", stats.usage.failed},
                      {"compile_ms", stats.usage.compile_ms}}},
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
                        moment_text(stats.newest), moment_text(stats.last_used), times_text(stats.compile_ms));
  }
  print(text + '\n' + usage_text(stats.usage));
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
