// The bytes that no implementation of an all-reduce can avoid to move.
#pragma once

#include <cstdint>

#include "commfuse/spec.hpp"

namespace commfuse::cli {

/// Of all ranks together: every rank's input read once, every output written once, the residual (and a mixture) read
/// once, by the rank that adds it. Weights and single numbers do not count, nor does anything between the ranks.
[[nodiscard]] std::uint64_t unavoidable_bytes(const KernelSpec& shape, std::int64_t tokens);

/// How long moving `bytes` takes at `gigabytes_per_second` (10^9), in microseconds.
[[nodiscard]] double traffic_floor_us(std::uint64_t bytes, double gigabytes_per_second);

}  // namespace commfuse::cli
