// Times of the fastest public kernels, measured with the method of `commfuse bench`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "commfuse/spec.hpp"

namespace commfuse::cli {

/// What the times are, for tables.
inline constexpr std::string_view kPublishedSource = "public kernels, same method (one H200, without dependent launch)";

struct Published {
  std::optional<double> one_shot_us;
  std::optional<double> two_shot_us;

  [[nodiscard]] std::optional<double> of(Algorithm algorithm) const {
    return algorithm == Algorithm::kOneShot ? one_shot_us : two_shot_us;
  }
  /// The faster of those that there are.
  [[nodiscard]] std::optional<double> best() const;
};

/// Empty where nothing was published for this pattern, type, world size, hidden size and number of tokens.
[[nodiscard]] Published published_times(const KernelSpec& shape, std::int64_t tokens);

}  // namespace commfuse::cli
