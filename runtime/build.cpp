#include "runtime/build.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "cache/entry.hpp"
#include "cache/explain.hpp"
#include "cache/obtain.hpp"
#include "cache/store.hpp"
#include "cache/usage.hpp"
#include "runtime/driver.hpp"
#include "runtime/kernel_signature.hpp"
#include "runtime/log.hpp"
#include "runtime/parallel.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kInstructionBytes = 16;  // on every architecture since Volta

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// What is kept with a kernel although its machine code does not depend on it (see cache/entry.hpp).
std::string facts_of(const Program& program, const CompiledKernel& kernel, const Toolchain& toolchain) {
  nlohmann::json environment = nlohmann::json::object();
  for (const EnvVariable& variable : list_environment()) {
    if (variable.set && variable.name.starts_with("NVRTC_")) environment[std::string(variable.name)] = variable.value;
  }
  const nlohmann::json facts = {
      {"log", kernel.log},
      {"phases_ms",
       {{"total", kernel.times.total},
        {"front_end", kernel.times.front_end},
        {"nvvm", kernel.times.optimizer},
        {"ptxas", kernel.times.assembler}}},
      {"resources",
       {{"registers", kernel.facts.registers},
        {"shared_bytes", kernel.facts.shared_bytes},
        {"stack_bytes", kernel.facts.stack_bytes},
        {"spill_store_bytes", kernel.spill_store_bytes},
        {"spill_load_bytes", kernel.spill_load_bytes},
        {"code_bytes", kernel.facts.code_bytes},
        {"instructions", kernel.facts.code_bytes / kInstructionBytes},
        {"param_bytes", kernel.facts.param_bytes}}},
      {"source", program.source},
      {"toolchain",
       {{"nvrtc", toolchain.facts().build},
        {"path", toolchain.path()},
        {"origin", toolchain.origin()},
        {"environment", environment}}},
  };
  return facts.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// The NVRTC builds whose kernels for `arch` lie in the cache, newest first.
std::vector<std::string> builds_in_cache(const cache::Store& store, const std::string& arch) {
  std::set<std::string> builds;
  for (const cache::EntryInfo& entry : store.list()) {
    if (!entry.problem.empty() || entry.arch != arch) continue;
    try {
      const cache::Metadata metadata = cache::Metadata::parse(entry.metadata_json);
      builds.insert(cache::Signature::parse(metadata.signature_json).nvrtc_build);
    } catch (const Error&) {  // not an entry of ours: find() would not use it either
    }
  }
  std::vector<std::string> sorted(builds.begin(), builds.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return version_of(a) > version_of(b); });
  return sorted;
}

/// Of a driver that is in use already; a mere compilation does not open one.
int known_driver_version() {
  const Driver* driver = driver_if_open();
  return driver == nullptr ? 0 : driver->version();
}

class Build {
 public:
  Build(const std::vector<KernelSpec>& specs, const BuildOptions& options, bool keep_cubins, const Env& environment)
      : specs_(specs),
        options_(options),
        keep_cubins_(keep_cubins),
        store_({.directories = cache::find_directories(cache::Environment::of_process(), options.cache_dir),
                .warn = [](std::string_view message) { log(LogLevel::kWarning, message); }}),
        toolchains_(environment, ToolchainMemo(store_.directories()), known_driver_version()) {
    result_.report.kernels.resize(specs.size());
    result_.kernels.resize(specs.size());
  }

  BuildResult run() {
    const auto start = Clock::now();
    const std::uint64_t calls_before = nvrtc_calls();
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      report(i).spec = specs_[i];
      try {
        prepare(i);
      } catch (...) {
        fail(i, std::current_exception());
      }
    }
    if (!wanted_.empty()) obtain_all();
    record_usage();
    BuildReport& total = result_.report;
    total.nvrtc_calls = static_cast<int>(nvrtc_calls() - calls_before);
    total.milliseconds = milliseconds_since(start);
    if (no_compiler_ != nullptr && total.hits == 0 && total.compiled == 0) std::rethrow_exception(no_compiler_);
    return std::move(result_);
  }

  std::vector<cache::Wanted> wanted() {
    std::vector<cache::Wanted> all;
    for (const KernelSpec& spec : specs_) {
      const Program program = program_of(spec);
      const Target& target = target_of(spec.arch);
      std::vector<cache::Wanted> candidates;
      for (const std::string& build : target.builds) {
        const cache::Signature signature = signature_of(spec, program, build);
        candidates.push_back({signature.key(), signature.to_json()});
      }
      if (candidates.empty()) std::rethrow_exception(target.problem);
      const auto held = std::find_if(candidates.begin(), candidates.end(), [&](const cache::Wanted& one) {
        return candidates.size() > 1 && store_.peek(one.key, one.signature_json);
      });
      all.push_back(held == candidates.end() ? candidates.front() : *held);
    }
    return all;
  }

 private:
  /// An architecture's compiler, or why there is none and which compilers' kernels may do instead.
  struct Target {
    Toolchain* toolchain = nullptr;
    std::exception_ptr problem;
    std::vector<std::string> builds;  ///< to look for, best first
  };

  KernelReport& report(std::size_t i) { return result_.report.kernels[i]; }

  const Target& target_of(const std::string& arch) {
    const auto [slot, added] = targets_.try_emplace(arch);
    Target& target = slot->second;
    if (!added) return target;
    try {
      target.toolchain = &toolchains_.for_arch(arch);
      target.builds = {target.toolchain->build()};
    } catch (const Error&) {
      target.toolchain = nullptr;
      target.problem = std::current_exception();
      target.builds = builds_in_cache(store_, arch);
    }
    return target;
  }

  /// Puts the kernel on the list of those to find or to compile. Without a compiler, only the cache can have it, and
  /// what is not there throws.
  void prepare(std::size_t i) {
    const Program program = program_of(specs_[i]);
    const Target& target = target_of(specs_[i].arch);
    if (target.toolchain == nullptr) return find_without_compiler(i, program, target);
    const cache::Signature signature = signature_of(specs_[i], program, target.toolchain->build());
    report(i).key = signature.key();
    report(i).signature = signature.to_json();
    wanted_.push_back({report(i).key, report(i).signature});
    wanted_specs_.push_back(i);
  }

  void find_without_compiler(std::size_t i, const Program& program, const Target& target) {
    const auto start = Clock::now();
    for (const std::string& build : target.builds) {
      const cache::Signature signature = signature_of(specs_[i], program, build);
      report(i).key = signature.key();
      report(i).signature = signature.to_json();
      cache::Lookup found = store_.find(report(i).key, report(i).signature);
      if (!found && !found.detail.empty()) log(LogLevel::kInfo, found.detail);
      if (!found) continue;
      report(i).milliseconds = milliseconds_since(start);
      report(i).cubin_sha256 = found.hit->cubin_sha256;
      finish(i, KernelOrigin::kCache, found.hit->cubin.size());
      if (keep_cubins_) result_.kernels[i].cubin = std::move(found.hit->cubin);
      return;
    }
    no_compiler_ = target.problem;
    std::rethrow_exception(target.problem);
  }

  /// Shares the work with all other threads and processes that want the same kernels now.
  void obtain_all() {
    const cache::ObtainOptions sharing = {
        .rank = options_.rank, .ranks = options_.ranks, .jobs = choose_jobs(options_.jobs, wanted_.size())};
    std::vector<cache::Obtained> all = cache::obtain(
        store_, wanted_, [this](std::size_t w) { return compile_one(wanted_specs_[w]); }, sharing,
        [this](std::size_t w, const cache::Obtained& one) { take_over(wanted_specs_[w], one); });
    if (!keep_cubins_) return;
    for (std::size_t w = 0; w < all.size(); ++w) result_.kernels[wanted_specs_[w]].cubin = std::move(all[w].cubin);
  }

  cache::Compiled compile_one(std::size_t i) {
    const Program program = program_of(specs_[i]);
    Toolchain& toolchain = *targets_.at(specs_[i].arch).toolchain;
    std::call_once(told_, [&] {
      log(LogLevel::kInfo, fmt::format("compiling what the cache lacks of {} kernels, {} at a time", wanted_.size(),
                                       choose_jobs(options_.jobs, wanted_.size())));
    });
    log(LogLevel::kDebug, fmt::format("compiling {} for {}", program.name, program.arch));
    if (options_.on_compile) options_.on_compile(specs_[i], CompileStep::kBegin);
    CompiledKernel kernel;
    try {
      kernel = compile(toolchain.nvrtc(), program);
    } catch (...) {
      if (options_.on_compile) options_.on_compile(specs_[i], CompileStep::kEnd);
      const std::scoped_lock lock(usage_mutex_);
      ++usage_.failed;
      throw;
    }
    if (options_.on_compile) options_.on_compile(specs_[i], CompileStep::kEnd);
    if (!kernel.log.empty()) log(LogLevel::kInfo, fmt::format("{} for {}: {}", program.name, program.arch, kernel.log));
    {
      const std::scoped_lock lock(usage_mutex_);
      ++usage_.compiled;
      usage_.compile_ms["total"] += kernel.times.total;
      usage_.compile_ms["front_end"] += kernel.times.front_end;
      usage_.compile_ms["nvvm"] += kernel.times.optimizer;
      usage_.compile_ms["ptxas"] += kernel.times.assembler;
    }
    std::string facts = facts_of(program, kernel, toolchain);
    return {std::move(kernel.cubin), std::move(facts)};
  }

  void take_over(std::size_t i, const cache::Obtained& one) {
    report(i).milliseconds = one.milliseconds;
    if (one.origin != cache::Origin::kHit) tell_why_missed(i, one.miss);
    if (one.origin == cache::Origin::kFailed) return fail(i, one.error);
    // What became of storing it does not matter here: the store has warned, and the kernel is in hand.
    if (one.origin != cache::Origin::kHit && !one.publication.stored()) log(LogLevel::kDebug, one.publication.detail);
    report(i).cubin_sha256 = one.cubin_sha256;
    finish(i, one.origin == cache::Origin::kCompiled ? KernelOrigin::kCompiled : KernelOrigin::kCache,
           one.cubin.size());
  }

  /// For `commfuse stats`: what this call has found, missed and compiled.
  void record_usage() {
    const cache::Store::Counters counters = store_.counters();
    usage_.hits = counters.hits;
    for (std::size_t i = 0; i < counters.misses.size(); ++i) {
      if (counters.misses[i] != 0)
        usage_.misses[std::string(to_string(static_cast<cache::Miss>(i)))] = counters.misses[i];
    }
    store_.record(usage_);
  }

  /// Called by one thread at a time.
  void tell_why_missed(std::size_t i, const cache::Lookup& miss) {
    if (!log_enabled()) return;
    if (!miss.detail.empty()) log(LogLevel::kInfo, miss.detail);
    if (miss.reason != cache::Miss::kAbsent) return;
    if (!entries_) entries_ = store_.list();  // once: it reads every entry's metadata
    const cache::Explanation why = cache::explain(*entries_, report(i).signature);
    if (why.nearest_key.empty()) return;
    log(LogLevel::kInfo, fmt::format("{} was not in the cache; {}", specs_[i].name(), why.summary));
  }

  void fail(std::size_t i, const std::exception_ptr& failure) {
    result_.kernels[i].failed = failure;
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      report(i).error_code = error.code();
      report(i).error = error.what();
    } catch (const std::bad_alloc&) {
      report(i).error_code = Code::kOutOfMemory;
      report(i).error = "out of memory";
    } catch (const std::exception& error) {
      report(i).error_code = Code::kInternal;
      report(i).error = error.what();
    }
    finish(i, KernelOrigin::kFailed, 0);
  }

  /// Called by one thread at a time.
  void finish(std::size_t i, KernelOrigin origin, std::size_t cubin_bytes) {
    KernelReport& kernel = report(i);
    kernel.origin = origin;
    kernel.cubin_bytes = cubin_bytes;
    BuildReport& total = result_.report;
    ++(origin == KernelOrigin::kCache ? total.hits : origin == KernelOrigin::kCompiled ? total.compiled : total.failed);
    const int finished = total.hits + total.compiled + total.failed;
    if (options_.progress) options_.progress(kernel, finished, static_cast<int>(specs_.size()));
  }

  const std::vector<KernelSpec>& specs_;
  const BuildOptions& options_;
  const bool keep_cubins_;
  cache::Store store_;
  Toolchains toolchains_;
  std::map<std::string, Target> targets_;  ///< by architecture; complete before anything is compiled
  std::exception_ptr no_compiler_;
  std::vector<cache::Wanted> wanted_;
  std::vector<std::size_t> wanted_specs_;  ///< of each of them, the index in specs_
  std::once_flag told_;
  std::optional<std::vector<cache::EntryInfo>> entries_;  ///< listed where a miss is explained
  std::mutex usage_mutex_;                                ///< while kernels are compiled
  cache::Usage usage_;
  BuildResult result_;
};

}  // namespace

BuildResult build_kernels(const std::vector<KernelSpec>& specs, const BuildOptions& options, bool keep_cubins,
                          const Env& environment) {
  return Build(specs, options, keep_cubins, environment).run();
}

std::vector<cache::Wanted> wanted_kernels(const std::vector<KernelSpec>& specs, const std::filesystem::path& cache_dir,
                                          const Env& environment) {
  BuildOptions options;
  options.cache_dir = cache_dir;
  return Build(specs, options, /*keep_cubins=*/false, environment).wanted();
}

}  // namespace commfuse::runtime
