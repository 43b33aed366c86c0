// From samples to one figure.
#pragma once

#include <span>
#include <vector>

namespace commfuse::cli {

/// The middle value, the mean of the middle two of an even number; 0 of none.
[[nodiscard]] double median(std::vector<double> values);

/// Median microseconds of one call, from the milliseconds of whole replays of `calls` calls each. The first `dropped`
/// replays do not count: they also load the graph and wake the device.
[[nodiscard]] double microseconds_per_call(std::span<const float> replays_ms, std::size_t dropped, int calls);

}  // namespace commfuse::cli
