// The compilers on this machine, and which of them compiles for an architecture.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/nvrtc_search.hpp"
#include "runtime/toolchain_memo.hpp"

namespace commfuse::runtime {

/// One NVRTC, opened only when something is compiled with it, or when nothing is remembered about it.
class Toolchain {
 public:
  Toolchain(NvrtcPlaces::Candidate candidate, const ToolchainMemo& memo);

  [[nodiscard]] const std::string& path() const noexcept { return candidate_.path; }
  [[nodiscard]] const std::string& origin() const noexcept { return candidate_.origin; }
  [[nodiscard]] NvrtcVersion version() const noexcept { return facts_.version; }
  [[nodiscard]] const std::vector<int>& archs() const noexcept { return facts_.archs; }
  [[nodiscard]] bool supports(std::string_view arch) const noexcept;

  /// "13.0.88 CL-36424714". Compiles the probe when that is not remembered; throws as probe_build does.
  [[nodiscard]] const std::string& build();

  /// Throws as Nvrtc::open does.
  [[nodiscard]] const Nvrtc& nvrtc();

  /// What is known without opening anything that is not open.
  [[nodiscard]] const NvrtcFacts& facts() const noexcept { return facts_; }

 private:
  NvrtcPlaces::Candidate candidate_;
  const ToolchainMemo& memo_;
  std::string fingerprint_;
  NvrtcFacts facts_;
  std::mutex mutex_;
  const Nvrtc* nvrtc_ = nullptr;
};

/// All that were found. Any thread.
class Toolchains {
 public:
  /// Opens those that `memo` knows nothing of. Never throws for what is missing or broken: that is said by for_arch.
  /// `driver_version` is that of the driver which is to load the kernels (13000 = CUDA 13.0), 0 if it is not known: a
  /// driver may refuse the kernels of the next major version's compiler.
  Toolchains(const Env& env, ToolchainMemo memo, int driver_version = 0);
  Toolchains(const Toolchains&) = delete;  // its toolchains refer to its memo
  Toolchains& operator=(const Toolchains&) = delete;

  /// The newest that supports `arch`, of those first whose major version is not above the driver's. Throws
  /// Error(kNotFound) naming every place that was looked at where there is none at all, Error(kUnsupported) naming each
  /// one's version and architectures where none supports it.
  [[nodiscard]] Toolchain& for_arch(std::string_view arch);

  [[nodiscard]] const std::vector<std::unique_ptr<Toolchain>>& all() const noexcept { return toolchains_; }
  /// Files that looked like NVRTC and why they cannot be used.
  [[nodiscard]] const std::vector<std::string>& rejected() const noexcept { return rejected_; }
  [[nodiscard]] const std::vector<std::string>& looked_at() const noexcept { return looked_at_; }

 private:
  ToolchainMemo memo_;
  std::vector<std::unique_ptr<Toolchain>> toolchains_;
  std::vector<std::string> rejected_;
  std::vector<std::string> looked_at_;
};

/// The version in a build ("13.0" of "13.0.88 CL-36424714"); {0, 0} for a text of another form.
[[nodiscard]] NvrtcVersion version_of(std::string_view build) noexcept;

}  // namespace commfuse::runtime
