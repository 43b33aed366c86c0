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

/// Measurements of one shape, in the order tokens, algorithm, launch. A result that is not the reference's, or a call
/// that fails, becomes a measurement without a time; the group is reset afterwards. Rotation buffers that are too small
/// likewise.
[[nodiscard]] std::vector<Measurement> measure_shape(const KernelSet& kernels, gpu::Ranks& ranks,
                                                     const BenchShape& shape, const RunOptions& options);

/// Of rank 0, with the others' launches after it.
[[nodiscard]] HostCost measure_host_cost(const KernelSet& kernels, gpu::Ranks& ranks, const BenchShape& shape,
                                         std::int64_t tokens, const BenchKernel& empty);

}  // namespace commfuse::cli
