// What the first rank of a group and the others have in common.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/exchange/meeting.hpp"
#include "runtime/exchange/routes.hpp"

namespace commfuse::runtime {

/// How long a failure may take to leave, beyond the deadline if need be.
inline constexpr Timeout kFailureTime = Timeout(200);

class StarExchange : public Exchange {
 public:
  StarExchange(Meeting meeting, Company company);
  /// The first barrier, and the ways for descriptors.
  void finish_set_up(Deadline deadline);

 protected:
  [[nodiscard]] std::string what() const { return "exchange '" + group() + "' failed"; }
  [[nodiscard]] Connection* connection(int index) { return connections_[static_cast<std::size_t>(index)].get(); }
  /// Sends a failure and gives it a short while to leave; whoever does not read then finds the connection closed.
  void send_failure(const ExchangeError& failure, std::span<Connection* const> connections, Deadline deadline) noexcept;

 private:
  Descriptor pass_descriptor(int from, int to, int descriptor, Deadline deadline) override;
  Invitation prepare_split(std::span<const int> members, Deadline deadline) override;
  std::unique_ptr<Exchange> join_split(std::span<const int> members, Invitation invitation, Deadline deadline) override;

  Meeting meeting_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< as in Company
  std::unique_ptr<DescriptorRoutes> routes_;
};

[[nodiscard]] std::unique_ptr<StarExchange> make_first_rank(Meeting meeting, Company company);
[[nodiscard]] std::unique_ptr<StarExchange> make_other_rank(Meeting meeting, Company company);

}  // namespace commfuse::runtime
