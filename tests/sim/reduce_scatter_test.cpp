// What is particular to the reduce-scatter: runs of rows of any length, and ranks that have none. (Patterns, types and
// world sizes with balanced runs: all_reduce_test.cpp, for all operations.)
#include <gtest/gtest.h>

#include "sim/ptx.hpp"

#include "commfuse/workspace.hpp"
#include "device/params.cuh"
#include "device/rotation.cuh"
#include "sim/kernels/list.hpp"
#include "sim/kernels/run.hpp"
#include "sim/kernels/test_names.hpp"

namespace commfuse::sim {
namespace {

using reference::Values;

std::vector<KernelSpec> scatters_where(int hidden_size) {
  std::vector<KernelSpec> found;
  for (const KernelSpec& spec : simulated_kernels()) {
    if (spec.op == Op::kReduceScatter && spec.hidden_size == hidden_size) found.push_back(spec);
  }
  return found;
}

KernelSpec scatter(Pattern pattern, int world_size) {
  for (const KernelSpec& spec : scatters_where(528)) {
    if (spec.pattern == pattern && spec.world_size == world_size) return spec;
  }
  throw std::logic_error("not in the list of simulated kernels");
}

/// All rows for one rank.
std::vector<std::int64_t> only(int world_size, int rank, std::int64_t rows) {
  std::vector<std::int64_t> runs(static_cast<std::size_t>(world_size), 0);
  runs[static_cast<std::size_t>(rank)] = rows;
  return runs;
}

/// Many for some, none for others.
std::vector<std::int64_t> ragged(int world_size) {
  std::vector<std::int64_t> runs;
  for (int rank = 0; rank < world_size; ++rank) runs.push_back(rank % 3 == 1 ? 0 : 1 + 3 * (rank % 2));
  return runs;
}

class RunsOfRows : public ::testing::TestWithParam<KernelSpec> {};

TEST_P(RunsOfRows, MayHaveAnyLengthInEveryCall) {
  const KernelSpec& spec = GetParam();
  const int last = spec.world_size - 1;
  const std::vector<SimulatedCall> calls = {
      {.spec = spec, .rows_of_ranks = only(spec.world_size, last, 3)},
      {.spec = spec, .values = Values::kAnyBits, .rows_of_ranks = ragged(spec.world_size), .teams = 1},
      {.spec = spec, .rows_of_ranks = only(spec.world_size, 0, 1), .dependent = true},
      {.spec = spec, .rows_of_ranks = ragged(spec.world_size), .teams = 2, .dependent = true, .in_place = true},
      {.spec = spec, .tokens = 2 * spec.world_size + 1},
  };
  const std::uint32_t seeds = spec.world_size >= 8 ? 4 : 16;
  for (const Options& options : executions(seeds, {.seed = static_cast<std::uint64_t>(70 * spec.world_size)})) {
    EXPECT_EQ(run_calls(calls, options), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, RunsOfRows, ::testing::ValuesIn(scatters_where(528)), name_of_case);

class ScatteredScales : public ::testing::TestWithParam<KernelSpec> {};

// Every kind of scale lies by the rank's own rows, and nothing is written beside them (padding keeps its bytes unless
// it is to be zero).
TEST_P(ScatteredScales, LieByTheRanksOwnRows) {
  const KernelSpec& spec = GetParam();
  const SimulatedCall call{.spec = spec, .rows_of_ranks = ragged(spec.world_size), .teams = 2};
  for (const std::uint64_t seed : {1, 2}) EXPECT_EQ(run_calls({call}, {.seed = seed, .weak_memory = false}), "");
}

INSTANTIATE_TEST_SUITE_P(Sim, ScatteredScales, ::testing::ValuesIn(scatters_where(768)), name_of_case);

// ---- faults of earlier implementations ------------------------------------------------------------------------------

/// Runs 40 executions in which one rank gets as far ahead as it can.
void expect_right(const std::vector<SimulatedCall>& calls) {
  for (std::uint32_t subject = 0; subject < static_cast<std::uint32_t>(calls.front().spec.world_size); ++subject) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      EXPECT_EQ(run_calls(calls, {.seed = seed, .policy = Policy::kFavourOne, .subject_rank = subject}), "");
    }
  }
}

TEST(ReduceScatterFault, D5FewerTokensThanRanksKeepEveryRankInStep) {
  const SimulatedCall call{.spec = scatter(Pattern::kResidualRmsNorm, 3), .tokens = 1};
  expect_right(std::vector<SimulatedCall>(7, call));
}

SimulatedKernel g_kernel = nullptr;

/// A rank without rows that gives itself the greetings, and so waits for nobody.
void greets_itself(const void* params) {
  const auto& block = *static_cast<const device::ReduceScatterParams*>(params);
  const device::u32 rank = block.common.rank;
  const device::u64 epoch = device::ptx::load_weak(&block.common.control->epoch);
  if (block.row_begin[rank] == block.row_begin[rank + 1] && device::ptx::block_index() == 0 &&
      device::ptx::thread_index() == 0) {
    auto* slots =
        reinterpret_cast<device::Vec16*>(block.common.peer_buffer[rank] + epoch % 3 * block.common.rotation_bytes);
    for (device::u32 i = 0; i < 2; ++i) device::ptx::store_relaxed_sys(slots + i, device::Vec16{{0, 0, 0, 0}});
  }
  g_kernel(params);
}

TEST(ReduceScatterFault, D5ARankWithoutRowsThatWaitsForNobodyIsCaught) {
  const KernelSpec spec = scatter(Pattern::kResidualRmsNorm, 3);
  g_kernel = find_kernel(spec);
  const std::vector<SimulatedCall> calls(7, {.spec = spec, .tokens = 1, .kernel = greets_itself});
  bool caught = false;
  for (std::uint64_t seed = 1; seed <= 60 && !caught; ++seed) {
    try {
      caught = !run_calls(calls, {.seed = seed, .policy = Policy::kFavourOne, .subject_rank = 2}).empty();
    } catch (const Failure&) {
      caught = true;
    }
  }
  EXPECT_TRUE(caught);
}

TEST(ReduceScatterFault, D15RowsOfEachRankAreTheCallersToSay) {
  const SimulatedCall call{.spec = scatter(Pattern::kReduceScatter, 4), .rows_of_ranks = {0, 5, 1, 0}};
  expect_right({call, call, call});
}

TEST(ReduceScatterFault, D16TokensThatDoNotDivideEvenlyAreNeverCutInTheMiddleOfARow) {
  expect_right({{.spec = scatter(Pattern::kResidualRmsNorm, 4), .tokens = 10}});
}

// The simulator refuses any access outside a tensor; a rank here has fewer rows than the call has teams.
TEST(ReduceScatterFault, D17TeamsWithoutARowReadNothing) {
  expect_right({{.spec = scatter(Pattern::kResidualRmsNorm, 4), .tokens = 5, .teams = 6}});
}

TEST(ReduceScatterFault, D38ACallEmptiesNoMoreThanItsOwnRows) {
  // A buffer of the size that the rows of one rank need is enough: the simulator refuses an access outside it.
  const KernelSpec spec = scatter(Pattern::kReduceScatter, 4);
  EXPECT_EQ(required_rotation_bytes(spec, 8), std::uint64_t{3} * 2 * 528 * 2);
  expect_right({{.spec = spec, .tokens = 8}, {.spec = spec, .tokens = 8}, {.spec = spec, .tokens = 8}});
}

}  // namespace
}  // namespace commfuse::sim
