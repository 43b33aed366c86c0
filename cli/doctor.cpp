// commfuse doctor: what is here, what is missing, and which environment variables matter.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cache/filesystem.hpp"
#include "cache/locks.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/devices.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"
#include "commfuse/version.hpp"
#include "runtime/env.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

struct CompilerFinding {
  std::string path;
  std::string origin;
  std::string version;
  std::vector<int> archs;
};

/// One place that kernels are read from, the writable folder included.
struct LayerFinding {
  std::filesystem::path path;
  std::string kind;         ///< "folder", "pack", "missing"
  std::string file_system;  ///< "ext4", "nfs" ...
  bool writable = false;
  std::size_t kernels = 0;
};

struct CacheFinding {
  cache::Directories directories;
  std::string state;  ///< of the writable folder
  bool usable = false;
  std::uint64_t free_bytes = 0;
  std::size_t entries = 0;
  std::size_t damaged = 0;
  std::uint64_t bytes = 0;
  std::vector<LayerFinding> layers;
  std::string locks_folder;  ///< empty: processes cannot agree on who compiles what
  std::string locks_reason;  ///< why there
};

struct Findings {
  std::vector<CompilerFinding> compilers;  ///< newest first
  std::vector<std::string> rejected;
  std::vector<std::string> looked_at;
  DriverFinding driver;
  CacheFinding cache;
  std::vector<EnvVariable> environment;
};

/// The folder itself, or the nearest one above it that exists: where it would be made.
std::filesystem::path nearest_existing(std::filesystem::path folder) {
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

std::vector<LayerFinding> inspect_layers(const cache::Directories& directories,
                                         const std::vector<cache::EntryInfo>& entries) {
  std::vector<std::filesystem::path> paths = directories.readonly;
  if (!directories.writable.empty()) paths.insert(paths.begin(), directories.writable);
  std::vector<LayerFinding> layers;
  for (const auto& path : paths) {
    std::error_code error;
    LayerFinding layer;
    layer.path = path;
    layer.kind = std::filesystem::is_directory(path, error)      ? "folder"
                 : std::filesystem::is_regular_file(path, error) ? "pack"
                                                                 : "missing";
    const cache::FilesystemKind kind = cache::filesystem_of(path);
    layer.file_system = kind.local ? kind.name : kind.name + " (no locks)";
    layer.writable = path == directories.writable;
    layer.kernels = static_cast<std::size_t>(std::count_if(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.layer == path && entry.problem.empty();
    }));
    layers.push_back(std::move(layer));
  }
  return layers;
}

CacheFinding inspect_cache(const std::filesystem::path& cache_dir) {
  CacheFinding finding;
  const auto store = open_store(cache_dir);
  finding.directories = store->directories();
  const std::filesystem::path& folder = finding.directories.writable;
  const std::vector<cache::EntryInfo> entries = store->list();
  for (const cache::EntryInfo& entry : entries) {
    ++(entry.problem.empty() ? finding.entries : finding.damaged);
    finding.bytes += entry.disk_bytes;
  }
  finding.layers = inspect_layers(finding.directories, entries);
  finding.locks_folder = store->locks().directory().string();
  finding.locks_reason = store->locks().explanation();
  if (folder.empty()) {
    finding.state = "none: kernels are compiled again in every process";
    return finding;
  }
  std::error_code error;
  const bool exists = std::filesystem::is_directory(folder, error);
  const std::filesystem::path place = exists ? folder : nearest_existing(folder);
  finding.usable = is_writable_directory(place);
  if (finding.usable) {
    finding.state = exists ? "writable" : "not there yet; it can be made";
  } else {
    finding.state = exists ? "not writable" : fmt::format("cannot be made: {} is not writable", place.string());
  }
  const std::filesystem::space_info space = std::filesystem::space(place, error);
  if (!error) finding.free_bytes = space.available;
  return finding;
}

Findings inspect(const std::filesystem::path& cache_dir) {
  Findings findings;
  // Without memory of earlier runs: what is told here was looked at now.
  runtime::Toolchains toolchains(env(), runtime::ToolchainMemo({}));
  for (const auto& each : toolchains.all()) {
    CompilerFinding compiler{each->path(), each->origin(), each->version().text(), each->archs()};
    try {
      compiler.version = each->build();
    } catch (const Error& error) {
      findings.rejected.push_back(error.what());
      continue;
    }
    findings.compilers.push_back(std::move(compiler));
  }
  findings.rejected.insert(findings.rejected.end(), toolchains.rejected().begin(), toolchains.rejected().end());
  findings.looked_at = toolchains.looked_at();
  findings.driver = inspect_driver();
  findings.cache = inspect_cache(cache_dir);
  findings.environment = list_environment();
  return findings;
}

json document_of(const Findings& findings) {
  json document = {{"commfuse", COMMFUSE_VERSION_STRING},
                   {"can_compile", !findings.compilers.empty()},
                   {"can_launch", !findings.driver.devices.empty()}};
  json& toolchain = document["toolchain"];
  toolchain = {{"compilers", json::array()}, {"rejected", findings.rejected}, {"looked_at", findings.looked_at}};
  for (const CompilerFinding& each : findings.compilers) {
    toolchain["compilers"].push_back(
        {{"path", each.path}, {"found_by", each.origin}, {"build", each.version}, {"archs", each.archs}});
  }
  json& driver = document["driver"];
  driver = {{"path", findings.driver.path}, {"version", findings.driver.version}};
  if (!findings.driver.problem.empty()) driver["problem"] = findings.driver.problem;
  document["devices"] = json::array();
  for (const DeviceFinding& device : findings.driver.devices) {
    document["devices"].push_back({{"name", device.name},
                                   {"compute_capability", device.compute_capability},
                                   {"sms", device.sm_count},
                                   {"pci_bus_id", device.pci_bus_id}});
  }
  const CacheFinding& cache = findings.cache;
  json& folder = document["cache"];
  folder = {{"dir", cache.directories.writable.string()},
            {"chosen_by", cache.directories.chosen_by},
            {"state", cache.state},
            {"usable", cache.usable},
            {"free_bytes", cache.free_bytes},
            {"kernels", cache.entries},
            {"damaged", cache.damaged},
            {"bytes", cache.bytes},
            {"max_bytes", cache.directories.max_bytes},
            {"readonly", json::array()},
            {"warnings", cache.directories.warnings}};
  for (const auto& layer : cache.directories.readonly) folder["readonly"].push_back(layer.string());
  folder["layers"] = json::array();
  for (const LayerFinding& layer : cache.layers) {
    folder["layers"].push_back({{"path", layer.path.string()},
                                {"kind", layer.kind},
                                {"file_system", layer.file_system},
                                {"writable", layer.writable},
                                {"kernels", layer.kernels}});
  }
  folder["locks"] = {{"dir", cache.locks_folder}, {"reason", cache.locks_reason}};
  document["environment"] = json::array();
  for (const EnvVariable& variable : findings.environment) {
    json item = {{"name", variable.name}, {"meaning", variable.meaning}, {"value", nullptr}};
    if (variable.set) item["value"] = variable.value;
    document["environment"].push_back(std::move(item));
  }
  return document;
}

void add_compilers(const Findings& findings, std::string& text) {
  text += "Compiler (NVRTC)\n";
  for (const CompilerFinding& each : findings.compilers) {
    text += fmt::format("  ok       {} ({}, by {})\n           compiles for", each.path, each.version, each.origin);
    for (const int arch : each.archs) text += fmt::format(" {}", arch);
    text += '\n';
  }
  for (const std::string& each : findings.rejected) text += fmt::format("  unusable {}\n", each);
  if (!findings.compilers.empty()) return;
  text += "  missing  no libnvrtc can be used: only kernels that are in the cache will load\n";
  for (const std::string& place : findings.looked_at) text += fmt::format("           looked in {}\n", place);
}

void add_driver(const DriverFinding& driver, std::string& text) {
  text += "\nDriver and devices\n";
  if (!driver.problem.empty()) {
    text += fmt::format("  missing  {}\n", driver.problem);
  } else {
    text += fmt::format("  ok       {} (CUDA {})\n", driver.path, driver.version);
  }
  for (const DeviceFinding& device : driver.devices) {
    text += fmt::format("  ok       {}: {}, {} SMs, compute capability {}\n", device.pci_bus_id, device.name,
                        device.sm_count, device.compute_capability);
  }
}

void add_cache(const CacheFinding& cache, std::string& text) {
  text += "\nCache\n";
  const std::string folder =
      cache.directories.writable.empty() ? std::string("(none)") : cache.directories.writable.string();
  text += fmt::format("  {:<8} {} ({}; chosen by {})\n", cache.usable ? "ok" : "trouble", folder, cache.state,
                      cache.directories.chosen_by.empty() ? "nothing" : cache.directories.chosen_by);
  text += fmt::format("           {} in {}, {} free", count_text(static_cast<std::int64_t>(cache.entries), "kernel"),
                      bytes_text(cache.bytes), bytes_text(cache.free_bytes));
  if (cache.directories.max_bytes > 0) text += fmt::format(", at most {}", bytes_text(cache.directories.max_bytes));
  if (cache.damaged > 0) text += fmt::format(", {} damaged", cache.damaged);
  text += '\n';
  for (const LayerFinding& layer : cache.layers) {
    text += fmt::format("  layer    {} ({}, {}, {}): {}\n", layer.path.string(), layer.kind, layer.file_system,
                        layer.writable ? "writable" : "read-only",
                        count_text(static_cast<std::int64_t>(layer.kernels), "kernel"));
  }
  if (cache.locks_folder.empty()) {
    text += fmt::format("  trouble  no place for locks ({}): processes may compile a kernel more than once\n",
                        cache.locks_reason);
  } else {
    text += fmt::format("  locks    {} ({})\n", cache.locks_folder, cache.locks_reason);
  }
}

std::string text_of(const Findings& findings) {
  std::string text = fmt::format("commfuse {}\n\n", COMMFUSE_VERSION_STRING);
  add_compilers(findings, text);
  add_driver(findings.driver, text);
  add_cache(findings.cache, text);
  text += "\nEnvironment\n";
  Table table({{"  VARIABLE"}, {"VALUE"}, {"MEANING"}});
  for (const EnvVariable& variable : findings.environment) {
    table.add({fmt::format("  {}", variable.name), variable.set ? variable.value : "-", std::string(variable.meaning)});
  }
  text += table.text();
  text += fmt::format("\nThis machine {} kernels and {} them.\n",
                      findings.compilers.empty() ? "cannot compile" : "can compile",
                      findings.driver.devices.empty() ? "cannot launch" : "can launch");
  return text;
}

int diagnose(const std::filesystem::path& cache_dir, bool as_json) {
  const Findings findings = inspect(cache_dir);
  if (as_json) {
    print_document(document_of(findings));
  } else {
    print(text_of(findings));
  }
  return kDone;
}

}  // namespace

void add_doctor(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "doctor", "Show compilers, driver, devices, cache and environment",
                                  "commfuse doctor --json");
  auto cache_dir = std::make_shared<std::filesystem::path>();
  command->add_option("--cache-dir", *cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [cache_dir, &session] { session.run = [cache_dir, &session] { return diagnose(*cache_dir, session.json); }; });
}

}  // namespace commfuse::cli
