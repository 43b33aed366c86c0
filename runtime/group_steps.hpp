// How the ranks of a group do something together: each does its part, tells all others how it ended, and goes on when
// it has heard from all. What fails on one rank is known to all before anybody acts on it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "commfuse/exchange.hpp"
#include "runtime/group_plan.hpp"

namespace commfuse::runtime {

class GroupSteps {
 public:
  /// `purpose` for errors: "share memory in group 'tp'" of "cannot ...".
  GroupSteps(Exchange& exchange, Timeout timeout, std::string purpose)
      : exchange_(exchange), timeout_(timeout), purpose_(std::move(purpose)) {}

  struct Result {
    std::vector<Outcome> ranks;
    std::vector<Blob> payloads;
    [[nodiscard]] bool is_ok() const noexcept { return all_ok(ranks); }
  };
  /// Does this rank's part. Throws ExchangeError only; everything else becomes this rank's outcome.
  Result step(const std::function<void()>& part);
  /// The same, and tells the others what the part returns.
  Result publish(const std::function<Blob()>& part);
  /// A step without which it cannot go on: throws the same Error on every rank.
  void require(const std::function<void()>& part);
  /// Everybody's payload.
  std::vector<Blob> require_published(const std::function<Blob()>& part);
  void barrier() { exchange_.barrier(timeout_); }

  [[nodiscard]] Error error_of(const std::vector<Outcome>& ranks) const { return step_error(purpose_, ranks); }

  [[nodiscard]] Exchange& exchange() const noexcept { return exchange_; }
  [[nodiscard]] Timeout timeout() const noexcept { return timeout_; }
  [[nodiscard]] const std::string& purpose() const noexcept { return purpose_; }
  [[nodiscard]] int rank() const noexcept { return exchange_.rank(); }
  [[nodiscard]] int size() const noexcept { return exchange_.size(); }

 private:
  Exchange& exchange_;
  Timeout timeout_;
  std::string purpose_;
};

}  // namespace commfuse::runtime
