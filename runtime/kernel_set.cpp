// The kernels that an engine has loaded, and what becomes of those that it has not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "commfuse/engine.hpp"
#include "runtime/background_build.hpp"
#include "runtime/build.hpp"
#include "runtime/driver.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/loader.hpp"
#include "runtime/log.hpp"

namespace commfuse {
namespace {

std::vector<KernelSpec> without_repetition(const std::vector<KernelSpec>& specs) {
  std::vector<KernelSpec> unique;
  for (const KernelSpec& spec : specs) {
    if (std::find(unique.begin(), unique.end(), spec) == unique.end()) unique.push_back(spec);
  }
  return unique;
}

CUcontext current_context(const char* purpose) {
  CUcontext context = nullptr;
  COMMFUSE_DRIVER(cuCtxGetCurrent(&context));
  if (context == nullptr) {
    throw Error(Code::kInvalidArgument, purpose, "no CUDA context is current on this thread",
                "Make one current first (cuCtxSetCurrent, or any call of the CUDA runtime)");
  }
  return context;
}

constexpr int kOpen = -1;  // no MissPolicy yet

}  // namespace

struct KernelSet::State {
  explicit State(BuildOptions chosen)
      : options(std::move(chosen)), background([this](const std::vector<KernelSpec>& specs) { return build(specs); }) {}

  using Images = std::vector<const KernelImage*>;

  [[nodiscard]] runtime::BuildResult build(const std::vector<KernelSpec>& specs) const {
    return runtime::build_kernels(specs, options, /*keep_cubins=*/true);
  }

  /// Loads all, or throws what kept one from being built or loaded.
  void load(std::span<const KernelSpec> specs, const runtime::BuildResult& built) {
    for (const runtime::BuiltKernel& kernel : built.kernels) {
      if (kernel.failed != nullptr) std::rethrow_exception(kernel.failed);
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      images.add(runtime::load_kernel(specs[i], built.report.kernels[i].key, built.kernels[i].cubin));
    }
  }

  [[nodiscard]] Images miss(std::span<const KernelSpec> specs);
  [[noreturn]] void refuse(const KernelSpec& spec, const std::string& why, const std::string& remedy);

  std::string arch;
  CUcontext context = nullptr;
  BuildReport report;
  const BuildOptions options;
  std::atomic<int> policy{kOpen};

  runtime::KernelTable images;

  std::mutex miss_mutex;  ///< one miss at a time, so that two for the same kernel load it once
  std::atomic<std::uint64_t> misses{0}, after_seal{0}, refused{0}, loaded{0}, compiled{0};
  runtime::BackgroundBuild background;  ///< last: its thread uses what is above
};

void KernelSet::State::refuse(const KernelSpec& spec, const std::string& why, const std::string& remedy) {
  ++refused;
  throw Error(Code::kNotWarmed, fmt::format("cannot prepare kernel '{}'", spec.name()),
              fmt::format("it is not in the kernel set, {}: {}", why, spec.to_json()), remedy);
}

KernelSet::State::Images KernelSet::State::miss(std::span<const KernelSpec> specs) {
  const std::scoped_lock one_at_a_time(miss_mutex);
  if (Images found = images.find_any(specs); !found.empty()) return found;
  ++misses;
  const int chosen = policy;
  if (chosen != kOpen) ++after_seal;
  const KernelSpec& first = specs.front();
  constexpr const char* kRemedy = "Add its pattern, type, hidden size and options to the deployment file";
  if (chosen == static_cast<int>(MissPolicy::kError)) refuse(first, "which is sealed", kRemedy);
  if (current_context("cannot add a kernel to a kernel set") != context) {
    throw Error(Code::kInvalidArgument, fmt::format("cannot add kernel '{}' to a kernel set", first.name()),
                "another CUDA context is current than the one that the set was loaded for");
  }
  const std::string told = fmt::format("kernel '{}' was not warmed up", first.name());
  std::optional<runtime::BuildResult> built;
  if (chosen == static_cast<int>(MissPolicy::kBackground)) {
    built = background.ask(specs);
    if (!built) {
      log(LogLevel::kWarning, told + " and is built in the background: " + first.to_json());
      refuse(first, "and is being built in the background",
             "Make the operation again later, and do without it until then");
    }
  } else {
    log(chosen == kOpen ? LogLevel::kInfo : LogLevel::kWarning, told + " and is built now: " + first.to_json());
    built = build({specs.begin(), specs.end()});
  }
  load(specs, *built);
  loaded += specs.size();
  compiled += static_cast<std::uint64_t>(built->report.compiled);
  return images.find_any(specs);
}

KernelSet KernelSet::warm_up(const Deployment& deployment, const BuildOptions& options) {
  return warm_up(deployment.kernels({current_arch()}), options);
}

KernelSet KernelSet::warm_up(const std::vector<KernelSpec>& specs, const BuildOptions& options) {
  const CUcontext context = current_context("cannot warm up");
  const std::string arch = current_arch();
  const std::vector<std::string>& archs = options.archs;
  if (!archs.empty() && std::find(archs.begin(), archs.end(), arch) == archs.end()) {
    throw Error(Code::kInvalidArgument, "cannot warm up",
                fmt::format("the device is {}, the options name {}", arch, fmt::join(archs, ", ")));
  }
  const std::vector<KernelSpec> unique = without_repetition(specs);
  for (const KernelSpec& spec : unique) {
    if (spec.arch == arch) continue;
    throw Error(Code::kInvalidArgument, fmt::format("cannot warm up kernel '{}'", spec.name()),
                fmt::format("it is for '{}', the device is {}", spec.arch, arch));
  }

  runtime::BuildResult built = runtime::build_kernels(unique, options, /*keep_cubins=*/true);
  BuildOptions later = options;
  later.progress = nullptr;  // of the call that is over
  auto state = std::make_unique<State>(std::move(later));
  state->arch = arch;
  state->context = context;
  state->load(unique, built);
  state->report = std::move(built.report);
  log(LogLevel::kInfo, fmt::format("{} kernels are loaded ({} compiled, {} from the cache)", unique.size(),
                                   state->report.compiled, state->report.hits));
  return KernelSet(std::move(state));
}

KernelSet::KernelSet(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
KernelSet::KernelSet(KernelSet&&) noexcept = default;
KernelSet& KernelSet::operator=(KernelSet&&) noexcept = default;
KernelSet::~KernelSet() = default;

void KernelSet::seal(MissPolicy policy) noexcept { state_->policy = static_cast<int>(policy); }

MissCounters KernelSet::miss_counters() const {
  const State& s = *state_;
  return {s.misses, s.after_seal, s.refused, s.loaded, s.compiled, s.background.pending()};
}

const BuildReport& KernelSet::report() const noexcept { return state_->report; }
const std::string& KernelSet::arch() const noexcept { return state_->arch; }
const KernelImage* KernelSet::find(const KernelSpec& spec) const noexcept { return state_->images.find(spec); }

std::vector<const KernelImage*> KernelSet::find_or_build(std::span<const KernelSpec> alternatives) const {
  if (alternatives.empty()) return {};
  State::Images found = state_->images.find_any(alternatives);
  return found.empty() ? state_->miss(alternatives) : found;
}

}  // namespace commfuse
