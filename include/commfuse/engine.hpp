// Compiling ahead of time, warming up, and the library's log.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
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
  std::string key;           ///< cache key, 64 hexadecimal digits; empty if it could not be made
  std::string signature;     ///< what the key is the SHA-256 of: canonical JSON of all that decides the machine code
  std::string cubin_sha256;  ///< of the machine code, 64 hexadecimal digits; empty for kFailed
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

/// What becomes of a miss after KernelSet::seal: of an operation that is made for a kernel which was not warmed up.
/// Whatever is chosen, the miss is counted.
enum class MissPolicy : int {
  kError = 0,       ///< Error(kNotWarmed) with the kernel's specification: nothing is compiled while requests wait
  kWarn = 1,        ///< a warning in the log, then the kernel is built on the spot, as before seal()
  kBackground = 2,  ///< Error(kNotWarmed), and it is built on another thread: the operation can be made later
};

struct MissCounters {
  std::uint64_t misses = 0;      ///< operations for which the set held no kernel
  std::uint64_t after_seal = 0;  ///< of those, after seal(): 0 in an engine that warms up what it needs
  std::uint64_t refused = 0;     ///< of those, ended in Error(kNotWarmed)
  std::uint64_t loaded = 0;      ///< kernels that misses have added to the set
  std::uint64_t compiled = 0;    ///< of those, compiled; the others were in the cache
  std::uint64_t pending = 0;     ///< builds in the background that nobody has taken over yet
};

/// The kernels of a deployment, loaded for the CUDA context that is current when it is made, which must outlive it.
/// Usable from any thread. Kernels are added by misses only, and never removed.
class KernelSet {
 public:
  /// Compiles what is missing, loads everything into the current context, forces it onto the device and checks each
  /// kernel's parameter layout and occupancy. Throws Error on the first kernel that cannot be had. The set keeps
  /// `options` for kernels that it builds later; `on_compile` is called for those too.
  [[nodiscard]] static KernelSet warm_up(const Deployment& deployment, const BuildOptions& options = {});
  /// As above for explicit specs (their `arch` must be the device's).
  [[nodiscard]] static KernelSet warm_up(const std::vector<KernelSpec>& specs, const BuildOptions& options = {});

  KernelSet(KernelSet&&) noexcept;
  KernelSet& operator=(KernelSet&&) noexcept;
  /// Waits for a build in the background.
  ~KernelSet();

  /// The engine is ready: from here on a miss is what `policy` says. Before, kernels are built when an operation is
  /// made for them. Call it on every rank, after the last operation that every start makes. A later call changes the
  /// policy.
  void seal(MissPolicy policy = MissPolicy::kError) noexcept;
  [[nodiscard]] MissCounters miss_counters() const;

  /// Of warm_up; kernels that misses have added are not in it.
  [[nodiscard]] const BuildReport& report() const noexcept;
  /// The loaded kernel of a spec, or null. Not for the launch path: operations look it up once, when they are made.
  [[nodiscard]] const KernelImage* find(const KernelSpec& spec) const noexcept;
  /// For operations: the loaded kernels of `alternatives`, null where there is none. If there is none at all, that is a
  /// miss: all alternatives are built, or Error(kNotWarmed) is thrown (see MissPolicy). The context of warm_up must be
  /// current. Throws what building throws as well.
  [[nodiscard]] std::vector<const KernelImage*> find_or_build(std::span<const KernelSpec> alternatives) const;
  /// The architecture of the device that the kernels were loaded for ("sm_90a").
  [[nodiscard]] const std::string& arch() const noexcept;

 private:
  struct State;
  explicit KernelSet(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

class Exchange;

/// Compares what the ranks are about to run: the key and the SHA-256 of the cubin of every kernel. A rank with another
/// kernel (a stale layer, another compiler) would hang or corrupt the first collective; this names it before.
/// Collective over `exchange` (commfuse/exchange.hpp), to be called after warm_up or precompile; needs no GPU. Throws
/// the same ExchangeError(kMismatch) on every rank, with the ranks that differ from the majority, the first kernel that
/// differs, and what differs in it. Kernels that failed to build count as missing.
void agree_on_kernels(Exchange& exchange, const BuildReport& report, std::chrono::milliseconds timeout);

/// The compilation target for the current context's device ("sm_90a" on an H100 or H200). Throws Error(kNotFound) where
/// there is no driver or no device.
[[nodiscard]] std::string current_arch();

}  // namespace commfuse
