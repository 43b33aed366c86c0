// The kernels that an engine has loaded, and what becomes of those that it has not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "commfuse/engine.hpp"
#include "runtime/background_build.hpp"
#include "runtime/build.hpp"
#include "runtime/driver.hpp"
#include "runtime/loader.hpp"
#include "runtime/log.hpp"

namespace commfuse {
namespace {

/// Of what tells the kernels of one device apart; the fields left out rarely do.
struct SpecHash {
  std::size_t operator()(const KernelSpec& spec) const noexcept {
    std::size_t hash = 0;
    for (const int field :
         {static_cast<int>(spec.op), static_cast<int>(spec.pattern), static_cast<int>(spec.algorithm),
          static_cast<int>(spec.dtype), static_cast<int>(spec.gamma_dtype), static_cast<int>(spec.quant_layout),
          spec.world_size, spec.hidden_size, spec.threads, spec.cluster, static_cast<int>(spec.fp32_accumulate)}) {
      hash = (hash ^ static_cast<std::size_t>(field)) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

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

  [[nodiscard]] const KernelImage* find(const KernelSpec& spec) const noexcept {
    const std::shared_lock lock(mutex);
    const auto image = images.find(spec);
    return image == images.end() ? nullptr : &image->second;
  }

  /// Empty if there is none at all.
  [[nodiscard]] Images find_any(std::span<const KernelSpec> specs) const {
    Images found;
    for (const KernelSpec& spec : specs) found.push_back(find(spec));
    if (std::all_of(found.begin(), found.end(), [](const KernelImage* image) { return image == nullptr; })) return {};
    return found;
  }

  [[nodiscard]] runtime::BuildResult build(const std::vector<KernelSpec>& specs) const {
    return runtime::build_kernels(specs, options, /*keep_cubins=*/true);
  }

  /// Loads all, or throws what kept one from being built or loaded.
  void load(std::span<const KernelSpec> specs, const runtime::BuildResult& built) {
    for (const runtime::BuiltKernel& kernel : built.kernels) {
      if (kernel.failed != nullptr) std::rethrow_exception(kernel.failed);
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      KernelImage image = runtime::load_kernel(specs[i], built.report.kernels[i].key, built.kernels[i].cubin);
      const std::scoped_lock lock(mutex);
      images.try_emplace(specs[i], std::move(image));
    }
  }

  [[nodiscard]] Images miss(std::span<const KernelSpec> specs);
  [[noreturn]] void refuse(const KernelSpec& spec, const std::string& why, const std::string& remedy);

  std::string arch;
  CUcontext context = nullptr;
  BuildReport report;
  const BuildOptions options;
  std::atomic<int> policy{kOpen};

  mutable std::shared_mutex mutex;  ///< of `images`, whose nodes stay where they are
  std::unordered_map<KernelSpec, KernelImage, SpecHash> images;

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
  if (Images found = find_any(specs); !found.empty()) return found;
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
  return find_any(specs);
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
const KernelImage* KernelSet::find(const KernelSpec& spec) const noexcept { return state_->find(spec); }

std::vector<const KernelImage*> KernelSet::find_or_build(std::span<const KernelSpec> alternatives) const {
  if (alternatives.empty()) return {};
  State::Images found = state_->find_any(alternatives);
  return found.empty() ? state_->miss(alternatives) : found;
}

}  // namespace commfuse
