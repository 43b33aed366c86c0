#include "commfuse/planner.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <tuple>

namespace commfuse {
namespace {

KernelSpec shape(int world_size, int hidden_size, Pattern pattern = Pattern::kResidualRmsNorm) {
  KernelSpec spec;
  spec.pattern = pattern;
  spec.world_size = world_size;
  spec.hidden_size = hidden_size;
  spec.arch = "sm_90a";
  return spec;
}

std::vector<KernelSpec> all_kernels(KernelSpec spec) {
  std::vector<KernelSpec> kernels;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    spec.algorithm = algorithm;
    for (const Geometry& geometry : geometries(spec)) {
      spec.threads = geometry.threads;
      spec.cluster = geometry.cluster;
      kernels.push_back(spec);
    }
  }
  return kernels;
}

Plan plan_for(const std::vector<KernelSpec>& kernels, std::int64_t tokens, const DeviceCaps& caps = {},
              int max_blocks = 0, bool dependent = false) {
  PlanRequest request;
  request.kernels = kernels;
  request.tokens = tokens;
  request.max_blocks = max_blocks;
  request.dependent_launch = dependent;
  return plan(request, caps);
}

TEST(Planner, EqualShapesAndDevicesGiveEqualPlans) {
  for (const int hidden_size : {64, 2880, 7168, 65536}) {
    const auto kernels = all_kernels(shape(8, hidden_size));
    for (const std::int64_t tokens : {1, 7, 64, 4096, 1 << 20}) {
      const Plan first = plan_for(kernels, tokens);
      const Plan again = plan_for(std::vector<KernelSpec>(kernels), tokens);
      EXPECT_EQ(first.kernel, again.kernel);
      EXPECT_EQ(first.blocks, again.blocks);
      EXPECT_EQ(first.reason, again.reason);
    }
  }
}

KernelSpec with(KernelSpec spec, Algorithm algorithm, const Geometry& geometry) {
  spec.algorithm = algorithm;
  spec.threads = geometry.threads;
  spec.cluster = geometry.cluster;
  return spec;
}

TEST(Planner, TakesRegisteredTensorsDirectlyFromFourMebibytesSentOn) {
  for (const int world_size : {2, 4, 8}) {
    const KernelSpec spec = shape(world_size, 4096);
    auto kernels = all_kernels(spec);
    KernelSpec direct = spec;
    direct.algorithm = Algorithm::kDirect;
    kernels.push_back(with(spec, Algorithm::kDirect, geometries(direct).front()));
    const std::int64_t threshold = ((std::int64_t{4} << 20) + 8192 * (world_size - 1) - 1) / (8192 * (world_size - 1));
    for (const auto& [tokens, registered, expected] :
         {std::tuple{threshold - 1, true, false}, std::tuple{threshold, true, true},
          std::tuple{threshold + 1, true, true}, std::tuple{threshold, false, false}}) {
      // All ranks on one device: one-shot ends before that.
      const Plan chosen = plan({.kernels = kernels, .tokens = tokens, .registered = registered},
                               {.sm_count = 132, .ranks_on_device = world_size});
      EXPECT_EQ(kernels[static_cast<std::size_t>(chosen.kernel)].algorithm == Algorithm::kDirect, expected)
          << world_size << " ranks, " << tokens << " tokens";
    }
    // Where there is nothing else it is taken whatever is registered.
    const std::vector<KernelSpec> only = {kernels.back()};
    EXPECT_EQ(plan({.kernels = only, .tokens = 1}, {}).kernel, 0);
  }
}

TEST(Planner, FollowsAMeasuredTableUpToTheLastTokenOfEachRange) {
  const KernelSpec spec = shape(4, 8192);
  const auto kernels = all_kernels(spec);
  const PlannerTable table = PlannerTable::parse(R"({"schema": 1, "device": "X", "sm_count": 132, "ranks_on_device": 4,
    "entries": [{"class": "norm", "dtype": "bf16", "hidden_size": 8192, "world_size": 4, "choices": [
      {"up_to_tokens": 5, "algorithm": "two_shot", "threads": 512, "cluster": 1, "blocks": 2},
      {"up_to_tokens": 9, "algorithm": "one_shot", "threads": 64, "cluster": 1, "blocks": 0},
      {"up_to_tokens": 1000, "algorithm": "one_shot", "threads": 512, "cluster": 1, "blocks": 0}]}]})");
  const auto planned = [&](std::int64_t tokens, std::optional<Algorithm> wanted = std::nullopt) {
    return plan({.kernels = kernels, .tokens = tokens, .algorithm = wanted, .measured = table.find(spec)},
                table.caps());
  };
  const auto spec_of = [&](const Plan& chosen) { return kernels[static_cast<std::size_t>(chosen.kernel)]; };
  for (const std::int64_t tokens : {4, 5}) {
    EXPECT_EQ(spec_of(planned(tokens)), with(spec, Algorithm::kTwoShot, {512, 1})) << tokens;
    EXPECT_LE(planned(tokens).blocks, 2U);
  }
  EXPECT_EQ(planned(5).reason, "measured: the fastest for so many tokens in the planner's table");
  // No kernel has the geometry of the second range: the rules decide.
  EXPECT_EQ(planned(6).kernel, plan({.kernels = kernels, .tokens = 6}, table.caps()).kernel);
  for (const std::int64_t tokens : {10, 1000, 1001}) {
    EXPECT_EQ(spec_of(planned(tokens)), with(spec, Algorithm::kOneShot, {512, 1})) << tokens;
  }
  // Measured with ordinary tensors: large calls with registered ones go by the rules.
  auto with_direct = kernels;
  with_direct.push_back(with(spec, Algorithm::kDirect, {512, 1}));
  const auto algorithm_of = [&](bool registered) {
    const Plan chosen = plan(
        {.kernels = with_direct, .tokens = 1000, .measured = table.find(spec), .registered = registered}, table.caps());
    return with_direct[static_cast<std::size_t>(chosen.kernel)].algorithm;
  };
  EXPECT_EQ(algorithm_of(true), Algorithm::kDirect);
  EXPECT_EQ(algorithm_of(false), Algorithm::kOneShot);
  // What the caller wants counts for more, and another shape has no entry.
  EXPECT_EQ(spec_of(planned(5, Algorithm::kOneShot)).algorithm, Algorithm::kOneShot);
  EXPECT_EQ(table.find(shape(4, 4096)), nullptr);
}

TEST(Planner, NoTokensMeanNoLaunch) {
  const auto kernels = all_kernels(shape(4, 4096));
  EXPECT_EQ(plan_for(kernels, 0).blocks, 0U);
  EXPECT_NE(plan_for(kernels, 0).reason, "");
}

// The limits of bytes that all ranks send together, by world size: on both sides of each.
TEST(Planner, ChangesToTwoShotRightAboveTheLimitOfItsWorldSize) {
  struct Limit {
    int world_size;
    std::int64_t mebibytes;
  };
  for (const Limit& limit : {Limit{2, 512}, Limit{3, 64}, Limit{4, 64}, Limit{8, 42}, Limit{16, 21}}) {
    const KernelSpec spec = shape(limit.world_size, 1024);
    const std::int64_t bytes_per_token = 1024 * 2 * 2 * limit.world_size;
    const std::int64_t threshold = (limit.mebibytes << 20) / bytes_per_token;
    EXPECT_TRUE(prefers_one_shot(spec, threshold - 1)) << limit.world_size;
    EXPECT_TRUE(prefers_one_shot(spec, threshold)) << limit.world_size;
    EXPECT_FALSE(prefers_one_shot(spec, threshold + 1)) << limit.world_size;
    const auto kernels = all_kernels(spec);
    EXPECT_EQ(kernels[plan_for(kernels, threshold).kernel].algorithm, Algorithm::kOneShot);
    EXPECT_EQ(kernels[plan_for(kernels, threshold + 1).kernel].algorithm, Algorithm::kTwoShot);
  }
}

TEST(Planner, TakesTheAlgorithmThatIsWantedOrTheOnlyOne) {
  const auto kernels = all_kernels(shape(8, 4096));
  PlanRequest request;
  request.kernels = kernels;
  request.tokens = 1;
  request.algorithm = Algorithm::kTwoShot;
  EXPECT_EQ(kernels[plan(request, {}).kernel].algorithm, Algorithm::kTwoShot);
  const std::vector<KernelSpec> one_shot(kernels.begin(), kernels.begin() + 1);
  request.kernels = one_shot;
  EXPECT_EQ(plan(request, {}).kernel, 0);
}

TEST(Planner, BlocksOfAllRanksOnADeviceAreResidentTogether) {
  for (const int ranks : {1, 2, 3, 8, 16}) {
    const DeviceCaps caps{.sm_count = 132, .ranks_on_device = ranks};
    for (const int hidden_size : {64, 2880, 8192, 65536}) {
      const auto kernels = all_kernels(shape(std::max(ranks, 2), hidden_size));
      for (const std::int64_t tokens : {1, 16, 128, 2048, 100000}) {
        const Plan chosen = plan_for(kernels, tokens, caps);
        const KernelSpec& spec = kernels[chosen.kernel];
        const std::int64_t room = std::int64_t{caps.sm_count} * resident_blocks_per_sm(spec.threads);
        EXPECT_LE(std::int64_t{chosen.blocks} * ranks, std::max<std::int64_t>(room, spec.cluster * ranks));
        EXPECT_EQ(chosen.blocks % static_cast<unsigned>(spec.cluster), 0U);
        EXPECT_GT(chosen.blocks, 0U);
      }
    }
  }
}

// A small block of one rank's next kernel on every SM would leave no room for a large block of another rank.
TEST(Planner, DependentKernelsOfAllRanksFitOneBlockPerSm) {
  const DeviceCaps caps{.sm_count = 132, .ranks_on_device = 3};
  for (const Pattern pattern : {Pattern::kAllReduce, Pattern::kResidualRmsNorm}) {
    const auto kernels = all_kernels(shape(3, 2880, pattern));
    for (const std::int64_t tokens : {1, 64, 4096}) {
      EXPECT_LE(plan_for(kernels, tokens, caps, 0, true).blocks * 2 * 3, 132U);
    }
  }
}

TEST(Planner, KeepsTheCallersCapDownToOneCluster) {
  const auto kernels = all_kernels(shape(4, 8192));
  for (const int cap : {1, 2, 8, 100}) {
    const Plan chosen = plan_for(kernels, 512, {}, cap);
    EXPECT_LE(chosen.blocks, static_cast<unsigned>(std::max(cap, kernels[chosen.kernel].cluster)));
  }
}

TEST(Planner, GeometryNeverDependsOnTokensAndClustersNeedSm90) {
  KernelSpec spec = shape(2, 8192);
  for (const Geometry& geometry : geometries(spec)) {
    EXPECT_EQ(geometry.threads % 32, 0);
    EXPECT_LE(geometry.threads, 1024);
  }
  spec.arch = "sm_80";
  for (const Geometry& geometry : geometries(spec)) EXPECT_EQ(geometry.cluster, 1);
}

TEST(Planner, AReduceScatterNeedsATeamForEachTokenOfOneRank) {
  KernelSpec spec = shape(8, 4096);
  spec.op = Op::kReduceScatter;
  spec.algorithm = Algorithm::kOneShot;
  std::vector<KernelSpec> kernels;
  for (const Geometry& geometry : geometries(spec)) {
    spec.threads = geometry.threads;
    spec.cluster = geometry.cluster;
    kernels.push_back(spec);
  }
  for (const std::int64_t tokens : {1, 8, 9, 64}) {
    const Plan chosen = plan_for(kernels, tokens);
    const auto cluster = static_cast<unsigned>(kernels[chosen.kernel].cluster);
    EXPECT_EQ(chosen.blocks / cluster, static_cast<unsigned>((tokens + 7) / 8)) << tokens;
    EXPECT_NE(chosen.reason.find("of this rank"), std::string_view::npos);
  }
}

TEST(Planner, EveryPlanHasAReason) {
  std::set<std::string_view> reasons;
  const auto kernels = all_kernels(shape(4, 4096));
  for (const std::int64_t tokens : {0, 1, 64, 100000}) reasons.insert(plan_for(kernels, tokens).reason);
  EXPECT_EQ(reasons.count(""), 0U);
  EXPECT_GE(reasons.size(), 3U);
}

}  // namespace
}  // namespace commfuse
