// Small helpers over sockets and clocks.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "commfuse/exchange.hpp"

namespace commfuse::runtime {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Checks that a timeout is positive and keeps it from overflowing the clock.
[[nodiscard]] Deadline deadline_after(Timeout timeout);
/// For poll(): rounded up, 0 once the deadline has passed.
[[nodiscard]] int milliseconds_left(Deadline deadline);
[[nodiscard]] Timeout left(Deadline deadline);
[[nodiscard]] std::string errno_text(int number);
/// "rank 3", "ranks 1, 2 and 5".
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

/// What the first rank of a group leaves for telling the others before they give up by themselves.
[[nodiscard]] Timeout telling_time(Timeout patience);

/// poll() on one descriptor, restarted after signals; false once the deadline has passed.
[[nodiscard]] bool wait_for(int descriptor, short events, Deadline deadline);

}  // namespace commfuse::runtime
