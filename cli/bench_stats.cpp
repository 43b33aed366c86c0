#include "cli/bench_stats.hpp"

#include <algorithm>

namespace commfuse::cli {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double microseconds_per_call(std::span<const float> replays_ms, std::size_t dropped, int calls) {
  const std::span<const float> kept = replays_ms.subspan(std::min(dropped, replays_ms.size()));
  return median({kept.begin(), kept.end()}) * 1000 / calls;
}

}  // namespace commfuse::cli
