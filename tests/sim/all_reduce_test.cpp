// All kernels in the simulator: protocol, numerics, every pattern.
#include <gtest/gtest.h>

#include <array>

#include "commfuse/planner.hpp"
#include "sim/kernels/list.hpp"
#include "sim/kernels/run.hpp"
#include "sim/kernels/test_names.hpp"

namespace commfuse::sim {
namespace {

using reference::Values;

const std::vector<KernelSpec>& kernels() {
  static const std::vector<KernelSpec> list = simulated_kernels();
  return list;
}

template <typename Predicate>
std::vector<KernelSpec> kernels_where(Predicate predicate) {
  std::vector<KernelSpec> found;
  for (const KernelSpec& spec : kernels()) {
    if (predicate(spec)) found.push_back(spec);
  }
  return found;
}

// ---- protocol: many calls of changing size, many executions ---------------------------------------------------------

/// Which tensors call number `call` of a direct kernel has registered: none, all, the input, the outputs, or a mixture.
std::uint32_t registered_in(const KernelSpec& spec, std::size_t call) {
  constexpr std::uint32_t kAll = (1U << device::kDirectTensors) - 1;
  constexpr std::uint32_t kIn = device::bit_of(device::Direct::kIn);
  constexpr std::array kMasks = {kAll, kIn, kAll & ~kIn, 0U, 0x29U, 0x16U};
  return spec.algorithm == Algorithm::kDirect ? kMasks[call % kMasks.size()] : 0;
}

class Protocol : public ::testing::TestWithParam<KernelSpec> {};

TEST_P(Protocol, KeepsRanksInStepOverCallsOfChangingSize) {
  const KernelSpec& spec = GetParam();
  // Fewer tokens than ranks, more, one; more rows than teams, so that slots are emptied on the way.
  std::vector<SimulatedCall> calls = {
      {.spec = spec, .tokens = 1},
      {.spec = spec, .tokens = 5, .teams = 2, .dependent = true},
      {.spec = spec, .tokens = 3, .dependent = true, .in_place = true},
      {.spec = spec, .tokens = 2 * spec.world_size, .values = Values::kAnyBits, .teams = 1},
      {.spec = spec, .tokens = 2},
  };
  // Seeds of their own for every world size: more than 200 for each algorithm.
  const std::uint32_t seeds = spec.world_size >= 8 ? 8 : 40;
  const Options base{.seed = static_cast<std::uint64_t>(1000 * spec.world_size)};
  std::size_t execution = 0;
  for (const Options& options : executions(seeds, base)) {
    for (std::size_t i = 0; i < calls.size(); ++i) calls[i].direct = registered_in(spec, execution + i);
    EXPECT_EQ(run_calls(calls, options), "");
    ++execution;
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, Protocol, ::testing::ValuesIn(kernels_where([](const KernelSpec& spec) {
                           return spec.hidden_size == 528;
                         })),
                         name_of_case);

// ---- numerics
// ---------------------------------------------------------------------------------------------------------

class Numerics : public ::testing::TestWithParam<KernelSpec> {};

TEST_P(Numerics, AgreeWithTheReferenceBitForBit) {
  const KernelSpec& spec = GetParam();
  for (const Values values : reference::kAllValues) {
    for (const std::int64_t tokens : {1, 4, 7}) {
      const SimulatedCall call{.spec = spec,
                               .tokens = tokens,
                               .values = values,
                               .teams = tokens == 7 ? 2U : 0U,
                               .direct = registered_in(spec, static_cast<std::size_t>(values) + (tokens == 4 ? 1 : 0))};
      EXPECT_EQ(run_calls({call}, {.seed = static_cast<std::uint64_t>(tokens) + 1, .weak_memory = false}), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, Numerics, ::testing::ValuesIn(kernels_where([](const KernelSpec& spec) {
                           return spec.hidden_size == 264 || spec.hidden_size == 768;
                         })),
                         name_of_case);

class Geometries : public ::testing::TestWithParam<KernelSpec> {};

TEST_P(Geometries, AgreeWithTheReferenceBitForBit) {
  const KernelSpec& spec = GetParam();
  const SimulatedCall call{.spec = spec, .tokens = 3, .direct = registered_in(spec, 0)};
  EXPECT_EQ(run_calls({call}, {.seed = 3, .weak_memory = false, .preemption = false}), "");
}

INSTANTIATE_TEST_SUITE_P(Sim, Geometries, ::testing::ValuesIn(kernels_where([](const KernelSpec& spec) {
                           return spec.hidden_size != 264 && spec.hidden_size != 528 && spec.hidden_size != 768;
                         })),
                         name_of_case);

}  // namespace
}  // namespace commfuse::sim
