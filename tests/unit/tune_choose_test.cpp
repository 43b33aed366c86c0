// From the times of a sweep to choices.
#include "cli/tune_choose.hpp"

#include <gtest/gtest.h>

namespace commfuse::cli {
namespace {

using runtime::TuningChoice;

constexpr Geometry kFew{.threads = 128, .cluster = 8};
constexpr Geometry kMany{.threads = 512, .cluster = 1};

TuneSample sample(std::int64_t tokens, Algorithm algorithm, Geometry geometry, double microseconds,
                  bool planned = false) {
  return {tokens, {0, algorithm, geometry, 0}, microseconds, planned};
}

TEST(TuneChoose, TakesTheFastestOfEachNumberOfTokensAndJoinsEqualNeighbours) {
  const std::vector<TuningChoice> choices = choose(
      {
          sample(4, Algorithm::kTwoShot, kMany, 9),
          sample(1, Algorithm::kOneShot, kFew, 3),
          sample(1, Algorithm::kTwoShot, kMany, 8),
          sample(2, Algorithm::kOneShot, kFew, 4),
          sample(2, Algorithm::kTwoShot, kMany, 8),
          sample(4, Algorithm::kOneShot, kFew, 12),
      },
      0.02);
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0], (TuningChoice{2, Algorithm::kOneShot, kFew, 0}));
  EXPECT_EQ(choices[1], (TuningChoice{4, Algorithm::kTwoShot, kMany, 0}));
}

TEST(TuneChoose, KeepsAChoiceThatIsNearlyAsFast) {
  const std::vector<TuneSample> samples = {
      sample(1, Algorithm::kOneShot, kFew, 3),
      sample(2, Algorithm::kOneShot, kFew, 4.04),
      sample(2, Algorithm::kOneShot, kMany, 4),
  };
  EXPECT_EQ(choose(samples, 0.02).size(), 1u);
  EXPECT_EQ(choose(samples, 0.005).size(), 2u);
}

TEST(TuneChoose, ACapOnTheBlocksIsAChoiceOfItsOwn) {
  TuneSample capped = sample(2, Algorithm::kOneShot, kFew, 2);
  capped.choice.blocks = 8;
  const std::vector<TuningChoice> choices =
      choose({sample(1, Algorithm::kOneShot, kFew, 1), sample(2, Algorithm::kOneShot, kFew, 3), capped}, 0.02);
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[1].blocks, 8);
}

TEST(TuneChoose, NothingMeasuredIsNothingChosen) { EXPECT_TRUE(choose({}, 0.02).empty()); }

TEST(TuneChoose, CapsAreWholeClustersBelowThePlan) {
  EXPECT_EQ(block_caps(66, 1), (std::vector<int>{0, 33, 16}));
  EXPECT_EQ(block_caps(64, 8), (std::vector<int>{0, 32, 16}));
  EXPECT_EQ(block_caps(16, 8), (std::vector<int>{0, 8}));
  EXPECT_EQ(block_caps(8, 8), (std::vector<int>{0}));
  EXPECT_EQ(block_caps(1, 1), (std::vector<int>{0}));
}

TEST(TuneChoose, WorstRatioOfThePlannerIsOverAllNumbersOfTokens) {
  EXPECT_EQ(worst_planned_ratio({}), 1);
  EXPECT_DOUBLE_EQ(worst_planned_ratio({
                       sample(1, Algorithm::kOneShot, kFew, 2, true),
                       sample(1, Algorithm::kTwoShot, kMany, 4),
                       sample(2, Algorithm::kOneShot, kFew, 6, true),
                       sample(2, Algorithm::kTwoShot, kMany, 4),
                   }),
                   1.5);
}

}  // namespace
}  // namespace commfuse::cli
