#include "runtime/exchange/socket.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>

namespace commfuse::runtime {
namespace {

constexpr Timeout kLongestTimeout = std::chrono::hours(24);

}  // namespace

Deadline deadline_after(Timeout timeout) {
  if (timeout <= Timeout::zero()) {
    throw Error(Code::kInvalidArgument, "cannot start a call of an exchange",
                "its timeout is " + std::to_string(timeout.count()) + " ms", "Give a positive timeout");
  }
  return Clock::now() + std::min(timeout, kLongestTimeout);
}

Timeout left(Deadline deadline) {
  const auto rest = std::chrono::ceil<Timeout>(deadline - Clock::now());
  return std::max(rest, Timeout::zero());
}

int milliseconds_left(Deadline deadline) {
  return static_cast<int>(std::min<Timeout::rep>(left(deadline).count(), INT_MAX));
}

std::string errno_text(int number) { return std::generic_category().message(number); }

std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

Timeout telling_time(Timeout patience) { return std::clamp(patience / 5, Timeout(10), Timeout(1000)); }

bool wait_for(int descriptor, short events, Deadline deadline) {
  for (;;) {
    pollfd entry = {descriptor, events, 0};
    const int ready = ::poll(&entry, 1, milliseconds_left(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw Error(Code::kIo, "cannot wait for a socket", errno_text(errno));
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace commfuse::runtime
