// Which operations and how many tokens a benchmark is asked for.
#include "cli/bench_inputs.hpp"

#include <gtest/gtest.h>

#include "cli/command.hpp"

namespace commfuse::cli {
namespace {

Deployment sample() {
  return Deployment::parse(R"({
    "name": "sample", "world_size": 4, "hidden_size": 4096, "dtype": "bf16", "max_tokens": 512,
    "operations": [{"op": "all_reduce", "patterns": ["all_reduce", "residual_rms_norm"]}]})");
}

std::string refusal_of(const std::vector<std::string>& patterns) {
  try {
    (void)chosen_shapes(sample(), patterns, "sm_90a");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(BenchInputs, PatternsLimitTheOperations) {
  EXPECT_EQ(chosen_shapes(sample(), {}, "sm_90a").size(), 2u);
  const std::vector<BenchShape> one = chosen_shapes(sample(), {"residual_rms_norm"}, "sm_90a");
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].spec.pattern, Pattern::kResidualRmsNorm);
}

TEST(BenchInputs, AnUnknownPatternIsNamedAndTheRightOneGuessed) {
  EXPECT_NE(refusal_of({"residual_rmsnorm"}).find("did you mean 'residual_rms_norm'?"), std::string::npos);
  EXPECT_NE(refusal_of({"rms_norm"}).find("nothing to measure"), std::string::npos);
}

TEST(BenchInputs, TokensStayWithinTheDeployment) {
  EXPECT_EQ(chosen_tokens(sample(), {}, {1, 512, 2048}), (std::vector<std::int64_t>{1, 512}));
  EXPECT_EQ(chosen_tokens(sample(), {7}, {1, 512}), (std::vector<std::int64_t>{7}));
  EXPECT_THROW((void)chosen_tokens(sample(), {513}, {}), UsageError);
  EXPECT_THROW((void)chosen_tokens(sample(), {0}, {}), UsageError);
}

TEST(BenchInputs, RotationBuffersLeaveRoomForTheTensors) {
  const std::vector<BenchShape> shapes = chosen_shapes(sample(), {}, "sm_90a");
  const std::vector<std::int64_t> tokens = {1, 512};
  const std::uint64_t most = shapes[0].rotation_bytes(512, {Algorithm::kOneShot});
  EXPECT_EQ(largest_rotation(shapes, tokens, std::uint64_t{1} << 40), most);
  const std::uint64_t less = largest_rotation(shapes, tokens, device_bytes_needed(shapes[0].spec, 512, most));
  EXPECT_GT(less, 0u);
  EXPECT_LT(less, most);
  EXPECT_EQ(largest_rotation(shapes, tokens, 1 << 20), 0u);
}

}  // namespace
}  // namespace commfuse::cli
