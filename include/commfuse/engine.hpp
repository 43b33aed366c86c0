// Compiling ahead of time, warming up, and the library's log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "commfuse/error.hpp"
#include "commfuse/spec.hpp"

namespace commfuse {

// ---- log ------------------------------------------------------------------------------------------------------------

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

/// Receives the library's messages; called from any thread, one call at a time. Without a sink the library is silent.
using LogSink = std::function<void(LogLevel, std::string_view message)>;
void set_log_sink(LogSink sink);

// ---- ahead of time --------------------------------------------------------------------------------------------------

/// kCache: it was there, or another process or thread compiled it meanwhile; kCompiled: by this call.
enum class KernelOrigin : int { kCache = 0, kCompiled = 1, kFailed = 2 };

/// One kernel of a precompile or warm-up.
struct KernelReport {
  KernelSpec spec;
  std::string key;        ///< cache key, 64 hexadecimal digits; empty if it could not be made
  std::string signature;  ///< what the key is the SHA-256 of: canonical JSON of all that decides the machine code
  KernelOrigin origin = KernelOrigin::kFailed;
  double milliseconds = 0;  ///< spent compiling it; 0 if this call did not
  std::size_t cubin_bytes = 0;
  std::string error;  ///< for kFailed
  Code error_code = Code::kOk;
};

struct BuildReport {
  std::vector<KernelReport> kernels;  ///< in the order of Deployment::kernels
  int compiled = 0;
  int hits = 0;
  int failed = 0;
  int nvrtc_calls = 0;  ///< programs given to NVRTC during this call, the version probe included
  double milliseconds = 0;
};

enum class CompileStep : int { kBegin = 0, kEnd = 1 };

struct BuildOptions {
  std::vector<std::string> archs;   ///< empty: the deployment's, else the device at hand
  std::filesystem::path cache_dir;  ///< empty: COMMFUSE_CACHE_DIR, else the user's cache folder
  int jobs = 0;                     ///< compilations at a time; 0 = one per core, bounded by memory
  /// This process is number `rank` of `ranks` that want the same kernels. It begins at its share of them, so that all
  /// compile something else from the start. Not needed for correctness: whatever these say, a kernel that another
  /// process of the machine is compiling is waited for, not compiled twice.
  int rank = 0;
  int ranks = 1;
  /// Called after each kernel, from one thread at a time, with the number finished so far and the total.
  std::function<void(const KernelReport&, int finished, int total)> progress;
  /// Called before and after each compilation that this call does, whatever came of it, on the thread that compiles:
  /// several at a time unless `jobs` is 1. What it throws at kBegin becomes the failure of that kernel.
  std::function<void(const KernelSpec&, CompileStep)> on_compile;
};

/// Compiles what the cache does not hold. Needs no GPU and no driver when architectures are named. One kernel's failure
/// does not stop the others. Throws only when nothing could be tried (no toolchain, no architecture).
[[nodiscard]] BuildReport precompile(const Deployment& deployment, const BuildOptions& options = {});

// ---- at start-up ----------------------------------------------------------------------------------------------------

struct KernelImage;  // a loaded kernel; internal

/// The kernels of a deployment, loaded for the CUDA context that is current when it is made. Immutable afterwards and
/// usable from any thread. The context must outlive it.
class KernelSet {
 public:
  /// Compiles what is missing, loads everything into the current context, forces it onto the device and checks each
  /// kernel's parameter layout and occupancy. Throws Error on the first kernel that cannot be had.
  [[nodiscard]] static KernelSet warm_up(const Deployment& deployment, const BuildOptions& options = {});
  /// As above for explicit specs (their `arch` must be the device's).
  [[nodiscard]] static KernelSet warm_up(const std::vector<KernelSpec>& specs, const BuildOptions& options = {});

  KernelSet(KernelSet&&) noexcept;
  KernelSet& operator=(KernelSet&&) noexcept;
  ~KernelSet();

  [[nodiscard]] const BuildReport& report() const noexcept;
  /// The loaded kernel of a spec, or null. Not for the launch path: operations look it up once, when they are made.
  [[nodiscard]] const KernelImage* find(const KernelSpec& spec) const noexcept;
  /// The architecture of the device that the kernels were loaded for ("sm_90a").
  [[nodiscard]] const std::string& arch() const noexcept;

 private:
  struct State;
  explicit KernelSet(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// The compilation target for the current context's device ("sm_90a" on an H100 or H200). Throws Error(kNotFound) where
/// there is no driver or no device.
[[nodiscard]] std::string current_arch();

}  // namespace commfuse
