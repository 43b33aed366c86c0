// Measuring one operation on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_floor.hpp"
#include "cli/bench_result.hpp"
#include "cli/bench_shape.hpp"
#include "commfuse/engine.hpp"
#include "gpu/loopback.hpp"

namespace commfuse::cli {

struct RunOptions {
  std::vector<std::int64_t> tokens;
  std::vector<std::optional<Algorithm>> algorithms;  ///< nothing: the planner's choice
  std::vector<bool> dependent;                       ///< ways of launching
  int calls = 50;
  int replays = 12;
  std::int64_t largest_checked = 2048;  ///< tokens; longer calls are checked with so many
  std::function<void(const std::string& what)> progress;
};

/// Inputs and expected outputs of one shape and number of tokens, on the device.
class BenchData {
 public:
  /// Calls of more than `largest_checked` tokens are checked with so many, and timed with the same inputs repeated.
  BenchData(const KernelSpec& spec, std::int64_t tokens, std::int64_t largest_checked);

  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] gpu::PlacedCase& checked() { return *checked_; }
  [[nodiscard]] gpu::PlacedCase& timed() { return timed_ ? *timed_ : *checked_; }

 private:
  std::int64_t tokens_;
  std::optional<gpu::PlacedCase> checked_;
  std::optional<gpu::PlacedCase> timed_;
};

/// What such a call would launch, not measured yet.
[[nodiscard]] Measurement describe_call(gpu::GroupOperation& operation, const BenchShape& shape, std::int64_t tokens,
                                        const LaunchOptions& launch);

/// Checks one call and, if it is right, times it, a direct one with all tensors registered: fills in the rest of
/// `measurement`. A result that is not the reference's, or a call that fails, leaves it without a time, and the group
/// is reset.
void measure_call(gpu::Ranks& ranks, gpu::GroupOperation& operation, BenchData& data, const LaunchOptions& launch,
                  const RunOptions& options, Measurement& measurement);

/// Measurements of one shape, in the order tokens, algorithm, launch. Where the rotation buffers are too small for a
/// call, its measurement says so.
[[nodiscard]] std::vector<Measurement> measure_shape(const KernelSet& kernels, gpu::Ranks& ranks,
                                                     const BenchShape& shape, const RunOptions& options);

/// Of rank 0, with the others' launches after it.
[[nodiscard]] HostCost measure_host_cost(const KernelSet& kernels, gpu::Ranks& ranks, const BenchShape& shape,
                                         std::int64_t tokens, const BenchKernel& empty);

}  // namespace commfuse::cli
