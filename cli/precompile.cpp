// commfuse precompile: fill the cache, no GPU needed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/directory.hpp"
#include "cache/manifest.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"
#include "commfuse/engine.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

struct Arguments {
  std::vector<std::filesystem::path> files;
  std::filesystem::path manifest;
  BuildOptions options;
};

/// One deployment with what became of it.
struct Done {
  std::filesystem::path file;
  Deployment deployment;
  std::vector<std::string> archs;
  BuildReport report;
};

struct Totals {
  std::int64_t kernels = 0;
  int compiled = 0;
  int hits = 0;
  int failed = 0;
  int nvrtc_calls = 0;
  double milliseconds = 0;
  std::uint64_t cubin_bytes = 0;

  void add(const BuildReport& report) {
    kernels += static_cast<std::int64_t>(report.kernels.size());
    compiled += report.compiled;
    hits += report.hits;
    failed += report.failed;
    nvrtc_calls += report.nvrtc_calls;
    milliseconds += report.milliseconds;
    for (const KernelReport& kernel : report.kernels) cubin_bytes += kernel.cubin_bytes;
  }

  [[nodiscard]] json to_json() const {
    return {{"kernels", kernels},        {"compiled", compiled},       {"hits", hits},
            {"failed", failed},          {"nvrtc_calls", nvrtc_calls}, {"milliseconds", milliseconds},
            {"cubin_bytes", cubin_bytes}};
  }
};

std::string_view origin_name(KernelOrigin origin) {
  switch (origin) {
    case KernelOrigin::kCache:
      return "cache";
    case KernelOrigin::kCompiled:
      return "compiled";
    case KernelOrigin::kFailed:
      break;
  }
  return "failed";
}

json kernel_document(const KernelReport& kernel) {
  json document = {{"kernel", kernel.spec.name()},
                   {"arch", kernel.spec.arch},
                   {"key", kernel.key},
                   {"origin", origin_name(kernel.origin)},
                   {"milliseconds", kernel.milliseconds},
                   {"cubin_bytes", kernel.cubin_bytes}};
  if (kernel.origin == KernelOrigin::kFailed) {
    document["error"] = {{"code", to_string(kernel.error_code)}, {"message", kernel.error}};
  }
  return document;
}

json document_of(const std::vector<Done>& all, const Totals& totals, const std::string& cache_dir) {
  json document = totals.to_json();
  document["cache_dir"] = cache_dir;
  document["deployments"] = json::array();
  for (const Done& done : all) {
    Totals own;
    own.add(done.report);
    json entry = own.to_json();
    entry["file"] = done.file.string();
    entry["name"] = done.deployment.name;
    entry["archs"] = done.archs;
    entry["reports"] = json::array();
    for (const KernelReport& kernel : done.report.kernels) entry["reports"].push_back(kernel_document(kernel));
    document["deployments"].push_back(std::move(entry));
  }
  return document;
}

std::string text_of(const std::vector<Done>& all, const Totals& totals, const std::string& cache_dir) {
  constexpr std::size_t kShownKey = 12;
  constexpr int kShownFailures = 2;
  Table table(
      {{"KERNEL"}, {"ARCH"}, {"FROM"}, {"TIME", Table::Align::kRight}, {"SIZE", Table::Align::kRight}, {"KEY"}});
  std::string failures;
  int shown_failures = 0;
  for (const Done& done : all) {
    for (const KernelReport& kernel : done.report.kernels) {
      const bool failed = kernel.origin == KernelOrigin::kFailed;
      table.add({kernel.spec.name(), kernel.spec.arch, std::string(origin_name(kernel.origin)),
                 time_text(kernel.milliseconds), failed ? "-" : bytes_text(kernel.cubin_bytes),
                 kernel.key.substr(0, kShownKey)});
      // One mistake in a template fails every kernel in the same way.
      if (failed && ++shown_failures <= kShownFailures) failures += fmt::format("\n{}\n", kernel.error);
    }
  }
  if (shown_failures > kShownFailures) {
    failures += fmt::format("\n... and {} more (--json has all)\n", shown_failures - kShownFailures);
  }
  return fmt::format("{}{}\n{}: {} compiled, {} from the cache, {} failed; {}, {}; {} in {}\n", table.text(), failures,
                     count_text(totals.kernels, "kernel"), totals.compiled, totals.hits, totals.failed,
                     count_text(totals.nvrtc_calls, "NVRTC call"), time_text(totals.milliseconds),
                     bytes_text(totals.cubin_bytes), cache_dir.empty() ? "no cache" : cache_dir);
}

/// The kernels of all deployments, each once. Those that failed are in it too: verify is to find them missing.
cache::Manifest manifest_of(const std::vector<Done>& all) {
  cache::Manifest manifest;
  std::set<std::string> seen;
  for (const Done& done : all) {
    manifest.name += (manifest.name.empty() ? "" : ", ") + done.deployment.name;
    for (const KernelReport& kernel : done.report.kernels) {
      if (!kernel.signature.empty() && seen.insert(kernel.key).second) {
        manifest.kernels.push_back({kernel.key, kernel.signature});
      }
    }
  }
  return manifest;
}

int precompile_files(const Arguments& arguments, bool as_json) {
  std::vector<Done> all;
  for (const auto& file : arguments.files) {
    Done done{file, load_deployment(file), {}, {}};
    done.archs = archs_for(done.deployment, arguments.options.archs);
    all.push_back(std::move(done));
  }
  Totals totals;
  {
    Progress progress;
    for (Done& done : all) {
      BuildOptions options = arguments.options;
      options.archs = done.archs;
      options.progress = [&](const KernelReport& kernel, int finished, int total) {
        progress.show(finished, total, fmt::format("{} {}", done.deployment.name, kernel.spec.name()));
      };
      done.report = precompile(done.deployment, options);
      totals.add(done.report);
    }
  }
  if (!arguments.manifest.empty()) manifest_of(all).save(arguments.manifest);
  const std::string cache_dir =
      cache::find_directories(cache::Environment::of_process(), arguments.options.cache_dir).writable.string();
  if (as_json) {
    print_document(document_of(all, totals, cache_dir));
  } else {
    print(text_of(all, totals, cache_dir));
  }
  return totals.failed == 0 ? kDone : kFailed;
}

}  // namespace

void add_precompile(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "precompile",
                                  "Compile the kernels of deployments into the cache; needs no GPU and no driver",
                                  "commfuse precompile llama.json --arch sm_90a,sm_100a --cache-dir /opt/kernels");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->files, "Deployment files")->required();
  command->add_option("--arch", arguments->options.archs, "Architectures, else the file's, else that of the GPU here")
      ->delimiter(',');
  command->add_option("--cache-dir", arguments->options.cache_dir,
                      "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->add_option("--jobs", arguments->options.jobs, "Compilations at a time; 0: one per core, bounded by memory")
      ->check(CLI::Range(0, 1024));
  command->add_option("--manifest", arguments->manifest,
                      "Write the list of these kernels to this file, for verify, pack and gc");
  auto* rank = command->add_option("--rank", arguments->options.rank,
                                   "Number of this process among those started together; each begins elsewhere");
  auto* ranks = command->add_option("--ranks", arguments->options.ranks, "How many are started together");
  rank->check(CLI::NonNegativeNumber)->needs(ranks);
  ranks->check(CLI::PositiveNumber)->needs(rank);
  command->callback([arguments, &session] {
    session.run = [arguments, &session] { return precompile_files(*arguments, session.json); };
  });
}

}  // namespace commfuse::cli
