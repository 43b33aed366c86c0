// What the others do when a rank never calls: every kernel ends within its deadline, in order, and no rank takes what a
// rank that gave up has made of nothing for a result.
#include <gtest/gtest.h>

#include "sim/kernels/list.hpp"
#include "sim/kernels/run.hpp"
#include "sim/kernels/test_names.hpp"

namespace commfuse::sim {
namespace {

constexpr std::uint32_t kAbsent = 2;
constexpr std::uint64_t kTimeoutNs = 100'000;

/// Three ranks: both algorithms, both basic patterns, rows on a block and on clusters of 2, 4 and 8.
std::vector<KernelSpec> kernels_of_three_ranks() {
  std::vector<KernelSpec> found;
  for (const KernelSpec& spec : simulated_kernels()) {
    if (spec.world_size == 3 && (spec.hidden_size == 528 || spec.hidden_size == 2048)) found.push_back(spec);
  }
  return found;
}

class MissingRank : public ::testing::TestWithParam<KernelSpec> {};

TEST_P(MissingRank, MakesEveryOtherRankTimeOut) {
  // One token: in two-shot rank 1 owns nothing and hears from rank 0 only. Four: every rank owns some, on two teams.
  for (const std::int64_t tokens : {1, 4}) {
    const SimulatedCall call{.spec = GetParam(), .tokens = tokens};
    for (const Options& options : executions(12, {.seed = 5000 + static_cast<std::uint64_t>(tokens)})) {
      const auto mailboxes = run_without_rank({call, call, call}, kAbsent, kTimeoutNs, options);
      for (std::uint32_t rank = 0; rank < kAbsent; ++rank) {
        EXPECT_EQ(mailboxes[rank].status, static_cast<std::uint32_t>(device::DeviceStatus::kTimeout))
            << "rank " << rank << ", " << tokens << " tokens, " << describe(options);
        // The call that failed is the first one.
        EXPECT_EQ(mailboxes[rank].epoch_low, 0U)
            << "rank " << rank << ", " << tokens << " tokens, " << describe(options);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, MissingRank, ::testing::ValuesIn(kernels_of_three_ranks()), name_of_case);

}  // namespace
}  // namespace commfuse::sim
