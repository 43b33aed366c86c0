// Operations for kernels that were not warmed up, on a real GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "commfuse/engine.hpp"
#include "gpu/loopback.hpp"
#include "reference/case.hpp"

namespace commfuse::gpu {
namespace {

using namespace std::chrono_literals;

class KernelSetOnGpu : public ::testing::Test {
 protected:
  static constexpr int kRanks = 2;
  static constexpr std::int64_t kTokens = 4;

  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    context_ = std::make_unique<DeviceContext>();
  }

  static KernelSpec shape(Pattern pattern, int hidden_size) {
    KernelSpec spec;
    spec.pattern = pattern;
    spec.world_size = kRanks;
    spec.hidden_size = hidden_size;
    spec.arch = current_arch();
    return spec.normalised();
  }

  /// With the plain all-reduce in it, and nothing else.
  static KernelSet warm() {
    KernelSpec spec = shape(Pattern::kAllReduce, 1024);
    const Geometry geometry = geometries(spec).front();
    spec.threads = geometry.threads;
    spec.cluster = geometry.cluster;
    return KernelSet::warm_up({spec});
  }

  static std::uint64_t bytes_for(KernelSpec spec) {
    spec.algorithm = Algorithm::kTwoShot;
    const std::uint64_t two_shot = required_rotation_bytes(spec, kTokens);
    spec.algorithm = Algorithm::kOneShot;
    return std::max(two_shot, required_rotation_bytes(spec, kTokens));
  }

  static void expect_right(GroupOperation& operation, Ranks& ranks, const KernelSpec& spec) {
    PlacedCase placed(reference::make_case(spec, kTokens, reference::Values::kNormal, 7));
    ASSERT_EQ(operation.launch(placed, options_of(placed.data())), "");
    ASSERT_EQ(ranks.synchronise(), "");
    EXPECT_EQ(placed.check(), "");
  }

  std::unique_ptr<DeviceContext> context_;
};

TEST_F(KernelSetOnGpu, AMissIsBuiltBeforeTheSealAndRefusedAfterIt) {
  KernelSet set = warm();
  const KernelSpec late = shape(Pattern::kResidualRmsNorm, 1024);
  Ranks ranks(kRanks, bytes_for(late));
  {
    GroupOperation operation(set, ranks, kind_of(late));
    EXPECT_EQ(set.miss_counters().misses, 1u) << "the second rank finds what the first has built";
    expect_right(operation, ranks, late);
  }
  set.seal();
  GroupOperation again(set, ranks, kind_of(late));
  expect_right(again, ranks, late);
  try {
    GroupOperation refused(set, ranks, kind_of(shape(Pattern::kResidualRmsNorm, 2048)));
    ADD_FAILURE() << "it was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotWarmed);
  }
  EXPECT_EQ(set.miss_counters().after_seal, 1u);
}

TEST_F(KernelSetOnGpu, AMissThatIsBuiltInTheBackgroundRunsWhenItIsThere) {
  KernelSet set = warm();
  set.seal(MissPolicy::kBackground);
  const KernelSpec late = shape(Pattern::kResidualRmsNorm, 1024);
  Ranks ranks(kRanks, bytes_for(late));
  std::unique_ptr<GroupOperation> operation;
  for (int i = 0; i < 3000 && operation == nullptr; ++i) {
    try {
      operation = std::make_unique<GroupOperation>(set, ranks, kind_of(late));
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::kNotWarmed) << error.what();
      std::this_thread::sleep_for(10ms);
    }
  }
  ASSERT_NE(operation, nullptr);
  expect_right(*operation, ranks, late);
  EXPECT_EQ(set.miss_counters().pending, 0u);
}

}  // namespace
}  // namespace commfuse::gpu
