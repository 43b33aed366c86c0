// How many rows each rank has, and by which balanced call an uneven one is sized.
#include "runtime/row_partition.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace commfuse::runtime {
namespace {

TEST(RowPartition, BalancedRunsDifferByOneAndTheFirstAreLonger) {
  for (const std::int64_t rows : {0, 1, 5, 8, 1000003}) {
    for (const int ranks : {1, 2, 3, 16}) {
      const RowPartition partition = balanced_partition(rows, ranks);
      EXPECT_EQ(partition.rows(ranks), rows);
      EXPECT_EQ(partition.planned, rows);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(partition.count(rank), rows / ranks + (rank < rows % ranks ? 1 : 0));
        EXPECT_LE(partition.count(rank), partition.longest);
      }
      EXPECT_EQ(partition.longest, partition.count(0));
    }
  }
}

TEST(RowPartition, GivenRunsAreSizedByTheLongest) {
  const std::vector<std::int64_t> rows = {3, 0, 7};
  const RowPartition partition = explicit_partition(rows);
  EXPECT_EQ(partition.begin[0], 0U);
  EXPECT_EQ(partition.begin[1], 3U);
  EXPECT_EQ(partition.begin[2], 3U);
  EXPECT_EQ(partition.begin[3], 10U);
  EXPECT_EQ(partition.longest, 7);
  EXPECT_EQ(partition.planned, 21);
}

TEST(RowPartition, GivenRunsThatAreBalancedArePlannedLikeBalancedOnes) {
  const std::vector<std::int64_t> rows = {4, 3, 3};
  const RowPartition given = explicit_partition(rows);
  const RowPartition balanced = balanced_partition(10, 3);
  EXPECT_EQ(given.begin, balanced.begin);
  EXPECT_EQ(given.longest, balanced.longest);
  EXPECT_EQ(given.planned, balanced.planned);
}

TEST(RowPartition, ImpossibleNumbersAreRefused) {
  std::int64_t sum = 0;
  const auto refusal = [&](std::vector<std::int64_t> rows) { return check_rows(rows, 2, sum).code; };
  EXPECT_EQ(refusal({4, 5}), Code::kOk);
  EXPECT_EQ(sum, 9);
  EXPECT_EQ(refusal({0, 0}), Code::kOk);
  EXPECT_EQ(refusal({4}), Code::kInvalidArgument);
  EXPECT_EQ(refusal({4, 5, 6}), Code::kInvalidArgument);
  EXPECT_EQ(refusal({-1, 5}), Code::kInvalidArgument);
  EXPECT_EQ(refusal({(std::int64_t{1} << 31) - 1, 1}), Code::kInvalidArgument);
  EXPECT_EQ(refusal({std::int64_t{1} << 62, std::int64_t{1} << 62}), Code::kInvalidArgument);
}

}  // namespace
}  // namespace commfuse::runtime
