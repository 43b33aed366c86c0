#include "cli/bench_result.hpp"

#include <algorithm>

#include "cli/bench_published.hpp"
#include "cli/bench_traffic.hpp"

namespace commfuse::cli {

bool BenchResult::failed() const {
  return compile_count != 0 ||
         std::any_of(measurements.begin(), measurements.end(), [](const Measurement& each) { return each.failed; });
}

Figures figures_of(const BenchResult& result, const Measurement& measurement) {
  Figures figures;
  figures.latency_floor_us = result.latency.of(measurement.dependent);
  const double speed = fastest(result.copies);
  if (speed > 0) {
    figures.traffic_floor_us = traffic_floor_us(unavoidable_bytes(measurement.kernel, measurement.tokens), speed);
  }
  const Published published = published_times(measurement.kernel, measurement.tokens);
  figures.published_us = published.of(measurement.kernel.algorithm);
  figures.published_best_us = published.best();
  if (!measurement.microseconds) return figures;
  const auto ratio_to = [&](double base) {
    return base > 0 ? std::optional(*measurement.microseconds / base) : std::nullopt;
  };
  figures.of_latency_floor = ratio_to(figures.latency_floor_us);
  figures.of_traffic_floor = ratio_to(figures.traffic_floor_us);
  figures.of_published_best = ratio_to(figures.published_best_us.value_or(0));
  return figures;
}

}  // namespace commfuse::cli
