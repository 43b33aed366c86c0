// Kernels that are built on a thread of their own, while the engine goes on without them.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "runtime/build.hpp"

namespace commfuse::runtime {

/// Builds one list of kernels after the other on one thread, which starts with the first. Touches no CUDA context: a
/// load may wait for the device, so it is left to a thread that can. All functions may be called from any thread.
class BackgroundBuild {
 public:
  using Work = std::function<BuildResult(const std::vector<KernelSpec>&)>;
  explicit BackgroundBuild(Work work);
  /// Waits for the build that is under way and drops the others.
  ~BackgroundBuild();
  BackgroundBuild(const BackgroundBuild&) = delete;
  BackgroundBuild& operator=(const BackgroundBuild&) = delete;

  /// The result for these kernels, which is handed over and forgotten; nothing while they are being built, which begins
  /// with the first call. Throws what the work threw, which is forgotten as well: the next call begins again.
  [[nodiscard]] std::optional<BuildResult> ask(std::span<const KernelSpec> specs);

  /// Lists that are waiting, being built, or not yet asked for again.
  [[nodiscard]] std::size_t pending() const;

 private:
  struct Job {
    std::vector<KernelSpec> specs;
    bool finished = false;
    std::optional<BuildResult> result = std::nullopt;  ///< else `failure`, once finished
    std::exception_ptr failure = nullptr;
  };

  void run();

  const Work work_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Job> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace commfuse::runtime
