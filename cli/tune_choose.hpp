// From the times of a sweep to the fewest choices that are nearly as fast.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tuning.hpp"

namespace commfuse::cli {

/// One measured launch.
struct TuneSample {
  std::int64_t tokens = 0;
  runtime::TuningChoice choice;  ///< up_to_tokens means nothing
  double microseconds = 0;
  bool planned = false;  ///< what the planner would have launched
};

/// Caps on the blocks of one rank that are worth measuring where the planner would launch `planned`: none (0), half, a
/// quarter; whole clusters.
[[nodiscard]] std::vector<int> block_caps(unsigned planned, int cluster);

/// For each number of tokens the fastest launch; the one for fewer tokens is kept as long as it is at most `tolerance`
/// (0.02: two per cent) slower, so that noise does not make ranges. `samples` in any order.
[[nodiscard]] std::vector<runtime::TuningChoice> choose(std::vector<TuneSample> samples, double tolerance);

/// How much slower the planner's launch is than the fastest, at its worst: 1.05 means five per cent. 1 where it was not
/// measured.
[[nodiscard]] double worst_planned_ratio(const std::vector<TuneSample>& samples);

}  // namespace commfuse::cli
