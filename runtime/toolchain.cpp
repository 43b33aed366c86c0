#include "runtime/toolchain.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "commfuse/error.hpp"
#include "runtime/compiler.hpp"

namespace commfuse::runtime {
namespace {

/// Every NVRTC that this process has opened, by path. Never closed: a compilation may be running when the process ends,
/// and NVRTC does not expect to be unloaded.
struct OpenNvrtcs {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Nvrtc>> by_path;
  std::map<std::string, std::string> builds;
};

OpenNvrtcs& open_nvrtcs() {
  static OpenNvrtcs& instance = *new OpenNvrtcs;
  return instance;
}

const Nvrtc& open_once(const std::string& path) {
  OpenNvrtcs& open = open_nvrtcs();
  const std::scoped_lock lock(open.mutex);
  std::unique_ptr<Nvrtc>& slot = open.by_path[path];
  if (slot == nullptr) slot = std::make_unique<Nvrtc>(Nvrtc::open(path));
  return *slot;
}

/// As above, ready to compile. Builtins are loaded by the first that compiles, because the builtins of two NVRTCs of
/// one version have the same name, and the wrong ones would be found first.
const Nvrtc& open_to_compile(const std::string& path) {
  const Nvrtc& nvrtc = open_once(path);
  OpenNvrtcs& open = open_nvrtcs();
  const std::scoped_lock lock(open.mutex);
  open.by_path.at(path)->load_builtins();
  return nvrtc;
}

const std::string& build_once(const std::string& path, const Nvrtc& nvrtc) {
  OpenNvrtcs& open = open_nvrtcs();
  const std::scoped_lock lock(open.mutex);
  std::string& build = open.builds[path];
  if (build.empty()) build = probe_build(nvrtc);
  return build;
}

}  // namespace

Toolchain::Toolchain(NvrtcPlaces::Candidate candidate, const ToolchainMemo& memo)
    : candidate_(std::move(candidate)), memo_(memo) {
  if (!candidate_.path.starts_with('/')) {  // a bare name: only the dynamic loader knows the file
    candidate_.path = open_once(candidate_.path).path();
  }
  fingerprint_ = fingerprint(candidate_.path);
  if (auto facts = memo_.find(fingerprint_)) {
    facts_ = std::move(*facts);
    return;
  }
  const Nvrtc& nvrtc = open_once(candidate_.path);
  facts_.version = nvrtc.version();
  facts_.archs = nvrtc.archs();
  // Also without its build: one that is never the newest would be opened at every start.
  memo_.remember(fingerprint_, facts_);
}

bool Toolchain::supports(std::string_view arch) const noexcept {
  return std::binary_search(facts_.archs.begin(), facts_.archs.end(), arch_number(arch));
}

const std::string& Toolchain::build() {
  const std::scoped_lock lock(mutex_);
  if (facts_.build.empty()) {
    if (nvrtc_ == nullptr) nvrtc_ = &open_to_compile(candidate_.path);
    facts_.build = build_once(candidate_.path, *nvrtc_);
    memo_.remember(fingerprint_, facts_);
  }
  return facts_.build;
}

const Nvrtc& Toolchain::nvrtc() {
  const std::scoped_lock lock(mutex_);
  if (nvrtc_ == nullptr) nvrtc_ = &open_to_compile(candidate_.path);
  return *nvrtc_;
}

Toolchains::Toolchains(const Env& env, ToolchainMemo memo, int driver_version) : memo_(std::move(memo)) {
  NvrtcPlaces places = find_nvrtc(env);
  looked_at_ = std::move(places.looked_at);
  for (NvrtcPlaces::Candidate& candidate : places.candidates) {
    try {
      toolchains_.push_back(std::make_unique<Toolchain>(std::move(candidate), memo_));
    } catch (const Error& error) {
      rejected_.emplace_back(fmt::format("{}: {}", error.message(), error.cause()));
    }
  }
  // Newest first; of equal ones that which was found first.
  const auto rank = [driver_version](const Toolchain& toolchain) {
    const bool loadable = driver_version == 0 || toolchain.version().major <= driver_version / 1000;
    return std::pair(loadable, toolchain.version());
  };
  std::stable_sort(toolchains_.begin(), toolchains_.end(),
                   [&](const auto& a, const auto& b) { return rank(*a) > rank(*b); });
}

Toolchain& Toolchains::for_arch(std::string_view arch) {
  for (const auto& toolchain : toolchains_) {
    if (toolchain->supports(arch)) return *toolchain;
  }
  std::string found;
  for (const auto& toolchain : toolchains_) {
    found += fmt::format("\n  {} (from {}) is version {} and supports sm_{}", toolchain->path(), toolchain->origin(),
                         toolchain->version().text(), fmt::join(toolchain->archs(), ", sm_"));
  }
  for (const std::string& reason : rejected_) found += "\n  " + reason;
  const std::string places = fmt::format("\nlooked at:\n  {}\n", fmt::join(looked_at_, "\n  "));
  if (toolchains_.empty()) {
    throw Error(Code::kNotFound, "no NVRTC to compile kernels with",
                (found.empty() ? std::string("there is no libnvrtc.so") : "found only" + found) + places,
                "Install the CUDA toolkit or Python's nvidia-cuda-nvrtc, set COMMFUSE_NVRTC to a libnvrtc.so, or use a "
                "cache that holds every kernel");
  }
  throw Error(Code::kUnsupported, fmt::format("no NVRTC compiles for '{}'", arch), "found" + found + places,
              "Install a newer CUDA version, or set COMMFUSE_NVRTC to its libnvrtc.so");
}

NvrtcVersion version_of(std::string_view build) noexcept {
  NvrtcVersion version;
  const char* end = build.data() + build.size();
  const auto major = std::from_chars(build.data(), end, version.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return {};
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  return minor.ec == std::errc() ? version : NvrtcVersion{};
}

}  // namespace commfuse::runtime
