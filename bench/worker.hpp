// Processes of their own that build a deployment: what a rank does at its start, without the GPU.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace commfuse::bench {

/// How one of them went.
struct WorkerReport {
  int compiled = 0;
  int hits = 0;
  int failed = 0;
  int nvrtc_calls = 0;
  double milliseconds = 0;  ///< of the build alone
  long peak_kib = 0;        ///< most that was resident at a time, of the whole process
  bool nvrtc_mapped = false;
};

/// What a worker's main program does: `arguments` are those after "--worker". Prints the report; returns the exit code.
int work(const std::vector<std::string>& arguments);

/// Starts `count` processes of this program together, which build deployment_of(`hidden_sizes`) in the cache at
/// `folder`, each `jobs` kernels at a time, and waits for them. `variables` are added to their environment. Throws
/// std::runtime_error if one does not end well.
[[nodiscard]] std::vector<WorkerReport> run_workers(int count, const std::filesystem::path& folder, int hidden_sizes,
                                                    int jobs, const std::map<std::string, std::string>& variables = {});

}  // namespace commfuse::bench
