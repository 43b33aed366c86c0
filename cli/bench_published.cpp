#include "cli/bench_published.hpp"

#include <algorithm>
#include <array>

namespace commfuse::cli {
namespace {

constexpr double kNone = 0;  // not measured, or the kernel refuses the shape

/// Microseconds of one shape: one-shot and two-shot for each of kTokens.
struct Row {
  Pattern pattern;
  int world_size;
  int hidden_size;
  std::array<std::array<double, 2>, 6> times;
};

constexpr std::array<std::int64_t, 6> kTokens = {1, 16, 64, 128, 512, 2048};

constexpr std::array kRows = {
    Row{Pattern::kResidualRmsNorm,
        2,
        4096,
        {{{4.38, kNone}, {4.57, 15.8}, {5.13, 11.3}, {7.18, 11.1}, {28.6, 28.8}, {108, 99.3}}}},
    Row{Pattern::kResidualRmsNorm,
        2,
        8192,
        {{{5.08, kNone}, {5.24, 13.9}, {7.74, 12.7}, {14.3, 15.2}, {49.9, 44.0}, {181, 157}}}},
    Row{Pattern::kResidualRmsNorm,
        4,
        4096,
        {{{5.23, kNone}, {6.22, 29.6}, {11.4, 20.4}, {22.9, 20.4}, {87.3, 57.3}, {326, 198}}}},
    Row{Pattern::kResidualRmsNorm,
        4,
        8192,
        {{{5.77, kNone}, {8.19, 24.8}, {22.7, 23.6}, {42.6, 32.3}, {151, 85.8}, {573, 309}}}},
    Row{Pattern::kResidualRmsNorm,
        8,
        4096,
        {{{6.66, kNone}, {13.2, 57.0}, {39.6, 40.7}, {75.2, 47.9}, {278, 115}, {1084, 384}}}},
    Row{Pattern::kResidualRmsNorm,
        8,
        8192,
        {{{7.18, kNone}, {24.3, 49.9}, {71.7, 52.0}, {133, 78.3}, {498, 249}, {1961, 923}}}},
    Row{Pattern::kAllReduce,
        4,
        8192,
        {{{3.46, kNone}, {5.65, kNone}, {18.6, 17.1}, {kNone, kNone}, {127, 64.2}, {484, 221}}}},
    Row{Pattern::kAllReduce,
        8,
        8192,
        {{{4.93, kNone}, {20.7, kNone}, {63.1, 34.7}, {kNone, kNone}, {458, 146}, {1809, 509}}}},
};

std::optional<double> known(double microseconds) {
  return microseconds == kNone ? std::nullopt : std::optional(microseconds);
}

}  // namespace

std::optional<double> Published::best() const {
  if (one_shot_us && two_shot_us) return std::min(*one_shot_us, *two_shot_us);
  return one_shot_us ? one_shot_us : two_shot_us;
}

Published published_times(const KernelSpec& shape, std::int64_t tokens) {
  if (shape.op != Op::kAllReduce || shape.dtype != DataType::kBf16 || !shape.fp32_accumulate ||
      shape.residual_scattered)
    return {};
  const auto column = std::find(kTokens.begin(), kTokens.end(), tokens);
  if (column == kTokens.end()) return {};
  for (const Row& row : kRows) {
    if (row.pattern != shape.pattern || row.world_size != shape.world_size || row.hidden_size != shape.hidden_size) {
      continue;
    }
    const auto& times = row.times[static_cast<std::size_t>(column - kTokens.begin())];
    return {known(times[0]), known(times[1])};
  }
  return {};
}

}  // namespace commfuse::cli
