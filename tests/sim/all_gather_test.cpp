// What is particular to the all-gather: any bits, runs of any length, outputs inside each other. (Types, world sizes
// and values with balanced runs: all_reduce_test.cpp, for all operations.)
#include <gtest/gtest.h>

#include "sim/kernels/list.hpp"
#include "sim/kernels/run.hpp"
#include "sim/kernels/test_names.hpp"

namespace commfuse::sim {
namespace {

using reference::Values;

std::vector<KernelSpec> gathers_where(int hidden_size) {
  std::vector<KernelSpec> found;
  for (const KernelSpec& spec : simulated_kernels()) {
    if (spec.op == Op::kAllGather && spec.hidden_size == hidden_size) found.push_back(spec);
  }
  return found;
}

KernelSpec gather(Pattern pattern, int world_size) {
  for (const KernelSpec& spec : gathers_where(528)) {
    if (spec.pattern == pattern && spec.world_size == world_size) return spec;
  }
  throw std::logic_error("not in the list of simulated kernels");
}

std::vector<std::int64_t> only(int world_size, int rank, std::int64_t rows) {
  std::vector<std::int64_t> runs(static_cast<std::size_t>(world_size), 0);
  runs[static_cast<std::size_t>(rank)] = rows;
  return runs;
}

std::vector<std::int64_t> ragged(int world_size) {
  std::vector<std::int64_t> runs;
  for (int rank = 0; rank < world_size; ++rank) runs.push_back(rank % 3 == 1 ? 0 : 1 + 3 * (rank % 2));
  return runs;
}

class GatheredRuns : public ::testing::TestWithParam<KernelSpec> {};

TEST_P(GatheredRuns, MayHaveAnyLengthInEveryCall) {
  const KernelSpec& spec = GetParam();
  const int last = spec.world_size - 1;
  const std::vector<SimulatedCall> calls = {
      {.spec = spec, .rows_of_ranks = only(spec.world_size, last, 3)},
      {.spec = spec, .values = Values::kAnyBits, .rows_of_ranks = ragged(spec.world_size), .teams = 1},
      {.spec = spec, .rows_of_ranks = only(spec.world_size, 0, 1), .dependent = true, .in_place = true},
      {.spec = spec, .rows_of_ranks = ragged(spec.world_size), .teams = 2, .dependent = true, .in_place = true},
      {.spec = spec, .tokens = 2 * spec.world_size + 1},
  };
  const std::uint32_t seeds = spec.world_size >= 8 ? 4 : 16;
  for (const Options& options : executions(seeds, {.seed = static_cast<std::uint64_t>(90 * spec.world_size)})) {
    EXPECT_EQ(run_calls(calls, options), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, GatheredRuns, ::testing::ValuesIn(gathers_where(528)), name_of_case);

// Every word of a group rules out another mask: only the last one is left (device/exact.cuh).
TEST(AllGather, IsExactForTheWordsThatAreHardestToMask) {
  for (const Pattern pattern : {Pattern::kAllGather, Pattern::kDualRmsNorm}) {
    for (const std::uint64_t seed : {1, 2, 4}) {
      const SimulatedCall call{.spec = gather(pattern, 3), .tokens = 7, .values = Values::kComplements, .teams = 2};
      EXPECT_EQ(run_calls({call, call, call, call}, {.seed = seed}), "");
    }
  }
}

TEST(AllGather, IsExactForEveryNanPayloadAndNegativeZero) {
  for (const Values values : {Values::kAnyBits, Values::kNans, Values::kOnesWords, Values::kNegativeZeros}) {
    const SimulatedCall call{.spec = gather(Pattern::kAllGather, 4), .tokens = 9, .values = values, .teams = 3};
    for (const std::uint64_t seed : {1, 2}) EXPECT_EQ(run_calls({call, call, call, call}, {.seed = seed}), "");
  }
}

// ---- faults of earlier implementations ------------------------------------------------------------------------------

void expect_right(const std::vector<SimulatedCall>& calls) {
  for (std::uint32_t subject = 0; subject < static_cast<std::uint32_t>(calls.front().spec.world_size); ++subject) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      EXPECT_EQ(run_calls(calls, {.seed = seed, .policy = Policy::kFavourOne, .subject_rank = subject}), "");
    }
  }
}

TEST(AllGatherFault, D6FewerTokensThanRanksKeepEveryRankInStep) {
  expect_right(std::vector<SimulatedCall>(7, {.spec = gather(Pattern::kAllGather, 3), .tokens = 1}));
}

TEST(AllGatherFault, D15RowsOfEachRankAreTheCallersToSay) {
  const SimulatedCall call{.spec = gather(Pattern::kDualRmsNorm, 4), .rows_of_ranks = {0, 5, 1, 0}};
  expect_right({call, call, call});
}

TEST(AllGatherFault, D18AnyHiddenSizeAndTypeHasAKernel) {
  KernelSpec spec;
  spec.op = Op::kAllGather;
  spec.pattern = Pattern::kAllGather;
  spec.arch = "sm_90a";
  spec.threads = 128;
  for (const int hidden_size : {8, 2112, 2880, 7168, kMaxHiddenSize}) {
    for (const DataType dtype : {DataType::kBf16, DataType::kFp32}) {
      spec.hidden_size = hidden_size;
      spec.dtype = spec.gamma_dtype = dtype;
      EXPECT_NO_THROW(spec.validate());
    }
  }
}

TEST(AllGatherFault, D19RowsMayBeSentAndReceivedByDifferentTeams) {
  // Ranks with different numbers of rows hand each row to whichever team it falls to; calls follow without a pause.
  const SimulatedCall call{.spec = gather(Pattern::kAllGather, 3), .rows_of_ranks = {7, 1, 4}, .teams = 2};
  expect_right(std::vector<SimulatedCall>(5, call));
}

}  // namespace
}  // namespace commfuse::sim
