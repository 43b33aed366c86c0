// What the benchmarks work on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "commfuse/spec.hpp"

namespace commfuse::bench {

/// A new empty folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// All-reduce and residual + RMSNorm of `hidden_sizes` models, both algorithms, every geometry.
[[nodiscard]] Deployment deployment_of(int hidden_sizes);
/// One kernel of a pattern: eight ranks, 8192 columns, bf16, sm_90a.
[[nodiscard]] KernelSpec kernel_of(Pattern pattern);

[[nodiscard]] cache::Store open_store(const std::filesystem::path& folder);

/// Puts into the cache at `folder` what a precompile with this machine's NVRTC would, except that the machine code is
/// as many bytes of nothing: reading does not run it, and compiling would take minutes.
void fill_cache(const std::filesystem::path& folder, const std::vector<KernelSpec>& kernels);

}  // namespace commfuse::bench
