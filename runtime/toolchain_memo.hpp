// Remembers what was found out about an NVRTC, so that a run that compiles nothing need not open it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache/directory.hpp"
#include "runtime/nvrtc.hpp"

namespace commfuse::runtime {

/// What decides about the use of an NVRTC.
struct NvrtcFacts {
  NvrtcVersion version;
  std::vector<int> archs;  ///< compute capabilities times ten, ascending
  std::string build;       ///< "13.0.88 CL-36424714"; empty while it is not known
};

/// A hash of the library's size and of samples of its bytes: equal for the same file on every machine, different for
/// different builds. (The whole file is 100 MB, which takes longer to hash than to compile a kernel.) Empty where the
/// file cannot be read.
[[nodiscard]] std::string fingerprint(const std::string& nvrtc_path);

/// Files of the cache's directories: toolchains/<fingerprint>.json, one canonical JSON object each with the members
/// archs, build, check (SHA-256 of the object without it), schema and version. They are trusted as kernels are: an
/// attacker who could write one could as well write the kernel that it leads to.
class ToolchainMemo {
 public:
  /// `directories` may name none: then nothing is remembered.
  explicit ToolchainMemo(cache::Directories directories) : directories_(std::move(directories)) {}

  /// Looks in the writable directory, then down the others. Anything wrong with a file is as if it were not there.
  [[nodiscard]] std::optional<NvrtcFacts> find(const std::string& fingerprint) const;

  /// Writes to the writable directory. Trouble goes to the log only, because nothing is lost but a probe's time.
  void remember(const std::string& fingerprint, const NvrtcFacts& facts) const noexcept;

 private:
  cache::Directories directories_;
};

}  // namespace commfuse::runtime
