#include "runtime/build.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "cache/entry.hpp"
#include "cache/store.hpp"
#include "runtime/driver.hpp"
#include "runtime/kernel_signature.hpp"
#include "runtime/log.hpp"
#include "runtime/parallel.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::runtime {
namespace {

using Clock = std::chrono::steady_clock;

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
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      report(i).spec = specs_[i];
      if (!attempt(i, [&] { return look_up(i); })) missing.push_back(i);
    }
    if (!missing.empty()) compile_all(missing);
    BuildReport& total = result_.report;
    total.nvrtc_calls = static_cast<int>(nvrtc_calls() - calls_before);
    total.milliseconds = milliseconds_since(start);
    if (no_compiler_ != nullptr && total.hits == 0 && total.compiled == 0) std::rethrow_exception(no_compiler_);
    return std::move(result_);
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

  /// True if the cache has the kernel. Throws where there is neither kernel nor compiler.
  bool look_up(std::size_t i) {
    const auto start = Clock::now();
    const Program program = program_of(specs_[i]);
    const Target& target = target_of(specs_[i].arch);
    for (const std::string& build : target.builds) {
      const cache::Signature signature = signature_of(specs_[i], program, build);
      report(i).key = signature.key();
      cache::Lookup found = store_.find(report(i).key, signature.to_json());
      if (!found && !found.detail.empty()) log(LogLevel::kInfo, found.detail);
      if (!found) continue;
      report(i).origin = KernelOrigin::kCache;
      finish(i, start, std::move(found.hit->cubin));
      return true;
    }
    if (target.problem != nullptr) {
      no_compiler_ = target.problem;
      std::rethrow_exception(target.problem);
    }
    return false;
  }

  void compile_all(const std::vector<std::size_t>& missing) {
    const int jobs = choose_jobs(options_.jobs, missing.size());
    log(LogLevel::kInfo, fmt::format("compiling {} of {} kernels, {} at a time", missing.size(), specs_.size(), jobs));
    for_each_parallel(missing.size(), jobs, [&](std::size_t m) {
      const std::size_t i = missing[m];
      (void)attempt(i, [&] {
        compile_one(i);
        return true;
      });
    });
  }

  void compile_one(std::size_t i) {
    const auto start = Clock::now();
    const Program program = program_of(specs_[i]);
    Toolchain& toolchain = *targets_.at(specs_[i].arch).toolchain;
    log(LogLevel::kDebug, fmt::format("compiling {} for {}", program.name, program.arch));
    CompiledKernel kernel = compile(toolchain.nvrtc(), program);
    if (!kernel.log.empty()) log(LogLevel::kInfo, fmt::format("{} for {}: {}", program.name, program.arch, kernel.log));
    const std::string signature = signature_of(specs_[i], program, toolchain.build()).to_json();
    // What becomes of it does not matter here: the store has warned, and the kernel is in hand.
    const cache::Publication stored =
        store_.publish(report(i).key, signature, kernel.cubin, facts_of(program, kernel, toolchain));
    if (!stored.stored()) log(LogLevel::kDebug, stored.detail);
    report(i).origin = KernelOrigin::kCompiled;
    finish(i, start, std::move(kernel.cubin));
  }

  /// Runs a step of kernel `i`; what it throws becomes the kernel's failure. True if the kernel is done with.
  template <typename Step>
  bool attempt(std::size_t i, Step step) {
    const auto start = Clock::now();
    try {
      return step();
    } catch (...) {
      result_.kernels[i].failed = std::current_exception();
    }
    try {
      std::rethrow_exception(result_.kernels[i].failed);
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
    report(i).origin = KernelOrigin::kFailed;
    finish(i, start, {});
    return true;
  }

  void finish(std::size_t i, Clock::time_point start, std::string cubin) {
    KernelReport& kernel = report(i);
    kernel.milliseconds = milliseconds_since(start);
    kernel.cubin_bytes = cubin.size();
    if (keep_cubins_) result_.kernels[i].cubin = std::move(cubin);
    const std::scoped_lock lock(mutex_);
    BuildReport& total = result_.report;
    if (kernel.origin == KernelOrigin::kCache) ++total.hits;
    if (kernel.origin == KernelOrigin::kCompiled) ++total.compiled;
    if (kernel.origin == KernelOrigin::kFailed) ++total.failed;
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
  std::mutex mutex_;  ///< of the totals and of the progress callback
  BuildResult result_;
};

}  // namespace

BuildResult build_kernels(const std::vector<KernelSpec>& specs, const BuildOptions& options, bool keep_cubins,
                          const Env& environment) {
  return Build(specs, options, keep_cubins, environment).run();
}

}  // namespace commfuse::runtime
