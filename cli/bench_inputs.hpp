// What a deployment and the command line say is to be measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_shape.hpp"
#include "commfuse/spec.hpp"

namespace commfuse::cli {

/// The deployment's operations for `arch` (of kind `only`, if that is given), only those with one of the patterns
/// called `names` unless there are none. A UsageError if a name is unknown or nothing is left.
[[nodiscard]] std::vector<BenchShape> chosen_shapes(const Deployment& deployment, const std::vector<std::string>& names,
                                                    const std::string& arch, std::optional<Op> only = std::nullopt);

/// Those given, else those of `usual` that the deployment allows. A UsageError for a number that it does not allow.
[[nodiscard]] std::vector<std::int64_t> chosen_tokens(const Deployment& deployment,
                                                      const std::vector<std::int64_t>& given,
                                                      std::vector<std::int64_t> usual);

/// The largest rotation buffer that a call of these needs and for which `free_bytes` of device memory are enough.
[[nodiscard]] std::uint64_t largest_rotation(const std::vector<BenchShape>& shapes,
                                             const std::vector<std::int64_t>& tokens, std::uint64_t free_bytes);

}  // namespace commfuse::cli
