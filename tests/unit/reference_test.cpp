// The oracle itself: hand-worked bits, and a plain double-precision computation of the same problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/all_reduce.hpp"
#include "reference/compare.hpp"
#include "reference/data.hpp"
#include "reference/estimate.hpp"
#include "reference/formats.hpp"
#include "reference/norm.hpp"

namespace commfuse::reference {
namespace {

Bytes bytes_of(const std::vector<std::uint16_t>& values) {
  Bytes bytes(values.size() * 2);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
Bytes row_of(DataType type, const std::vector<float>& values) {
  Bytes bytes(values.size() * static_cast<std::size_t>(element_bytes(type)));
  narrow(values, type, bytes, 0);
  return bytes;
}
std::uint16_t half_word(const Bytes& bytes, std::size_t index) {
  return static_cast<std::uint16_t>(bytes[2 * index] | bytes[2 * index + 1] << 8);
}

/// One token whose first element is `values[rank]` on each rank, the rest zero.
AllReduceProblem one_element(DataType type, bool fp32_accumulate, const std::vector<float>& values) {
  AllReduceProblem problem;
  problem.world_size = static_cast<int>(values.size());
  problem.tokens = 1;
  problem.hidden = 8;
  problem.type = type;
  problem.fp32_accumulate = fp32_accumulate;
  for (const float v : values) problem.inputs.push_back(row_of(type, {v, 0, 0, 0, 0, 0, 0, 0}));
  return problem;
}
float first_sum(const AllReduceProblem& problem) { return widen(all_reduce(problem).sum, problem.type, 0, 1)[0]; }

TEST(ReferenceSum, RoundsOnceWithFp32Accumulation) {
  // bf16 has steps of 2 above 256: 256 + 1 + 1 is 258 when rounded once, 256 when each tie falls back to even.
  EXPECT_EQ(first_sum(one_element(DataType::kBf16, true, {256, 1, 1})), 258.0f);
  EXPECT_EQ(first_sum(one_element(DataType::kBf16, false, {256, 1, 1})), 256.0f);
  EXPECT_EQ(first_sum(one_element(DataType::kFp16, true, {2048, 1, 1})), 2050.0f);
  EXPECT_EQ(first_sum(one_element(DataType::kFp16, false, {2048, 1, 1})), 2048.0f);
}

TEST(ReferenceSum, AddsInAscendingRankOrder) {
  const float big = 0x1p24f;
  EXPECT_EQ(first_sum(one_element(DataType::kFp32, true, {big, 1, -big})), 0.0f);
  EXPECT_EQ(first_sum(one_element(DataType::kFp32, true, {big, -big, 1})), 1.0f);
  EXPECT_EQ(first_sum(one_element(DataType::kFp32, true, {1, big, -big})), 0.0f);
}

TEST(ReferenceSum, KeepsNegativeZeroAndCanonicalisesNan) {
  EXPECT_TRUE(std::signbit(first_sum(one_element(DataType::kBf16, true, {-0.0f, -0.0f, -0.0f}))));
  EXPECT_FALSE(std::signbit(first_sum(one_element(DataType::kBf16, true, {-0.0f, 0.0f}))));
  AllReduceProblem problem = one_element(DataType::kFp16, true, {0, 0});
  problem.inputs[1] = bytes_of({0xffff, 0xfc01, 0x7e00, 0x7c00, 0, 0, 0, 0});
  const Bytes sum = all_reduce(problem).sum;
  EXPECT_EQ(half_word(sum, 0), 0x7fff);
  EXPECT_EQ(half_word(sum, 1), 0x7fff);
  EXPECT_EQ(half_word(sum, 2), 0x7fff);
  EXPECT_EQ(half_word(sum, 3), 0x7c00);
}

TEST(ReferenceSum, CopiesTheInputOfASingleRank) {
  for (const DataType type : {DataType::kFp16, DataType::kBf16, DataType::kFp32}) {
    AllReduceProblem problem;
    problem.tokens = 3;
    problem.hidden = 64;
    problem.type = type;
    fill_problem(problem, Values::kAnyBits, 5, false);
    const AllReduceResult result = all_reduce(problem);
    EXPECT_EQ(result.sum, problem.inputs[0]);
    EXPECT_EQ(result.residual_out, problem.inputs[0]);
  }
}

TEST(ReferenceResidual, IsRoundedBeforeTheNorm) {
  AllReduceProblem problem = one_element(DataType::kBf16, true, {256, 0});
  problem.residual = row_of(DataType::kBf16, {1, 0, 0, 0, 0, 0, 0, 0});
  problem.gamma = row_of(DataType::kBf16, std::vector<float>(8, 1.0f));
  problem.eps = 0;
  const AllReduceResult result = all_reduce(problem);
  EXPECT_EQ(widen(result.residual_out, problem.type, 0, 1)[0], 256.0f);
  EXPECT_EQ(widen(result.norm_out, problem.type, 0, 1)[0], round_to(DataType::kBf16, std::sqrt(8.0f)));
}

TEST(ReferenceResidual, ScatteredIsAddedByTheOwnerBeforeTheSum) {
  // Two tokens, two ranks: rank 1 owns token 1. Its 1 + 256 rounds to 256 before 1 is added: 256; in the usual order
  // (1 + 1) + 256 = 258.
  AllReduceProblem problem;
  problem.world_size = 2;
  problem.tokens = 2;
  problem.hidden = 8;
  const Bytes ones = row_of(DataType::kBf16, std::vector<float>(16, 1.0f));
  problem.inputs = {ones, ones};
  problem.residual = row_of(DataType::kBf16, std::vector<float>(16, 256.0f));
  EXPECT_EQ(widen(all_reduce(problem).residual_out, problem.type, 8, 1)[0], 258.0f);
  problem.residual_scattered = true;
  EXPECT_EQ(widen(all_reduce(problem).residual_out, problem.type, 8, 1)[0], 256.0f);
}

TEST(ReferenceRows, AreBalancedContiguousAndComplete) {
  for (const int world_size : {1, 2, 3, 8, 16}) {
    for (const std::int64_t tokens : {0, 1, 2, 7, 15, 16, 17, 129}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const Rows rows = rows_of_rank(tokens, world_size, rank);
        EXPECT_EQ(rows.begin, next);
        EXPECT_LE(rows.count - tokens / world_size, 1);
        EXPECT_GE(rows.count, tokens / world_size);
        next += rows.count;
      }
      EXPECT_EQ(next, tokens);
    }
  }
}

TEST(ReferenceNorm, AddsVectorsOfAGroupByButterfly) {
  // fp32, 4 elements a vector. Lane 0 holds 2^24, lane 16 holds 1, lane 8 holds 1: xor 16 comes first, so each 1 meets
  // 2^24 alone and is lost; were lanes 8 and 16 added to each other first, the sum would be 2^24 + 2.
  std::vector<float> row(128, 0.0f);
  row[0] = 0x1p12f;
  row[16 * 4] = 1;
  row[8 * 4] = 1;
  EXPECT_EQ(canonical_dot(row, row, 4), 0x1p24f);
  // Lanes 8 and 24 meet in the first step: the 2 survives.
  row[16 * 4] = 0;
  row[24 * 4] = 1;
  EXPECT_EQ(canonical_dot(row, row, 4), 0x1p24f + 2);
}

TEST(ReferenceNorm, DealsGroupsToLanes) {
  // Groups 0 and 32 belong to lane 0 and are added first; group 16 meets them afterwards.
  std::vector<float> row(33 * 128, 0.0f);
  row[0] = 0x1p12f;
  row[32 * 128] = 1;
  row[16 * 128] = 1;
  EXPECT_EQ(canonical_dot(row, row, 4), 0x1p24f);
  row[0] = 1;
  row[16 * 128] = 0x1p12f;
  EXPECT_EQ(canonical_dot(row, row, 4), 0x1p24f + 2);
}

TEST(ReferenceNorm, FoldsAVectorWithFusedMultiplyAdd) {
  // 2^24 + 2 plus a product of 1 - 2^-26: below the tie, unless the product is rounded (to 1) on its own first.
  std::vector<float> a(8, 0.0f), b(8, 0.0f);
  a[0] = b[0] = 0x1p12f;
  a[1] = 2;
  b[1] = 1;
  a[2] = 1 + 0x1p-13f;
  b[2] = 1 - 0x1p-13f;
  EXPECT_EQ(canonical_dot(a, b, 8), 0x1p24f + 2);
}

TEST(ReferenceNorm, AppliesTheWeightBias) {
  AllReduceProblem problem = one_element(DataType::kFp32, true, {3, 0});
  problem.gamma = row_of(DataType::kFp32, std::vector<float>(8, 0.5f));
  problem.eps = 0;
  const float plain = widen(all_reduce(problem).norm_out, problem.type, 0, 1)[0];
  problem.weight_bias = 1;
  const float biased = widen(all_reduce(problem).norm_out, problem.type, 0, 1)[0];
  EXPECT_NEAR(static_cast<double>(plain), 0.5 * std::sqrt(8.0), 1e-6);
  EXPECT_NEAR(static_cast<double>(biased), 1.5 * std::sqrt(8.0), 1e-6);
}

struct Tolerance {
  DataType type;
  double relative;
  double absolute;
};

TEST(ReferenceAllReduce, AgreesWithDoublePrecision) {
  for (const Tolerance tolerance :
       {Tolerance{DataType::kFp16, 2e-3, 2e-3}, {DataType::kBf16, 1.6e-2, 1.6e-2}, {DataType::kFp32, 1e-6, 2e-6}}) {
    for (const int world_size : {1, 2, 3, 8, 16}) {
      for (const int hidden : {8, 72, 2880}) {
        for (const int variant : {0, 1, 2, 3}) {
          AllReduceProblem problem;
          problem.world_size = world_size;
          problem.tokens = 5;
          problem.hidden = hidden;
          problem.type = tolerance.type;
          if (variant == 1) problem.gamma_type = DataType::kFp32;
          problem.weight_bias = variant == 2 ? 1.0f : 0.0f;
          fill_problem(problem, Values::kNormal, static_cast<std::uint64_t>(hidden * 100 + world_size), variant != 3);
          if (variant == 2) problem.pre_gamma = problem.gamma;
          const AllReduceResult exact = all_reduce(problem);
          const AllReduceEstimate estimate = estimate_all_reduce(problem);
          CompareOptions options;
          options.columns = static_cast<std::size_t>(hidden);
          const double a = tolerance.absolute, r = tolerance.relative;
          EXPECT_EQ(compare_near("sum", estimate.sum, exact.sum, problem.type, r, a, options), "");
          EXPECT_EQ(compare_near("residual", estimate.residual_out, exact.residual_out, problem.type, r, a, options),
                    "");
          EXPECT_EQ(compare_near("norm", estimate.norm_out, exact.norm_out, problem.type, 2 * r, 2 * a, options), "");
        }
      }
    }
  }
}

TEST(ReferenceAllReduce, GivesATokenTheSameBitsAloneAndInABatch) {
  AllReduceProblem batch;
  batch.world_size = 4;
  batch.tokens = 9;
  batch.hidden = 2880;
  fill_problem(batch, Values::kWide, 77);
  const AllReduceResult together = all_reduce(batch);
  AllReduceProblem alone = batch;
  alone.tokens = 1;
  const Rows row{6, 1};
  for (Bytes& input : alone.inputs) input = slice_rows(input, batch.row_bytes(), row);
  alone.residual = slice_rows(batch.residual, batch.row_bytes(), row);
  EXPECT_EQ(all_reduce(alone).norm_out, slice_rows(together.norm_out, batch.row_bytes(), row));
}

TEST(ReferenceAllReduce, RefusesInconsistentProblems) {
  AllReduceProblem problem = one_element(DataType::kBf16, true, {1, 2});
  problem.inputs[1].resize(4);
  EXPECT_THROW((void)all_reduce(problem), std::invalid_argument);
  problem.inputs.pop_back();
  EXPECT_THROW((void)all_reduce(problem), std::invalid_argument);
}

TEST(ReferenceFormats, RoundTripEveryValueOfTheSmallFormats) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto word = static_cast<std::uint16_t>(bits);
    const bool half_nan = (bits & 0x7fff) > 0x7c00, bfloat_nan = (bits & 0x7fff) > 0x7f80;
    ASSERT_EQ(to_half(from_half(word)), half_nan ? 0x7fff : word);
    ASSERT_EQ(to_bfloat(from_bfloat(word)), bfloat_nan ? 0x7fff : word);
  }
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    ASSERT_EQ(to_e4m3(from_e4m3(byte)), (bits & 0x7f) == 0x7f ? 0x7f : byte);
  }
  for (std::uint8_t nibble = 0; nibble < 16; ++nibble) ASSERT_EQ(to_e2m1(from_e2m1(nibble)), nibble);
}

TEST(ReferenceCompare, NamesRowColumnBitsAndValue) {
  const Bytes expected = row_of(DataType::kBf16, {1, 2, 3, 4, 5, 6, 7, 8});
  Bytes actual = expected;
  EXPECT_EQ(compare("norm_out", expected, actual, Format::kBf16), "");
  actual[2 * 6] ^= 1;  // 7 becomes the next bf16, 7.03125
  CompareOptions options;
  options.columns = 4;
  EXPECT_EQ(compare("norm_out", expected, actual, Format::kBf16, options),
            "norm_out: 1 of 8 elements differ\n  row 1, column 2: expected 0x40e0 (7), got 0x40e1 (7.03125)");
  options.max_ulp = 1;
  EXPECT_EQ(compare("norm_out", expected, actual, Format::kBf16, options), "");
  actual.pop_back();
  EXPECT_EQ(compare("norm_out", expected, actual, Format::kBf16, options), "norm_out: expected 16 bytes, got 15");
}

TEST(ReferenceCompare, TellsNansApartUnlessAskedNotTo) {
  const Bytes expected = bytes_of({0x7fff}), actual = bytes_of({0xffff}), number = bytes_of({0x3c00});
  EXPECT_NE(compare("x", expected, actual, Format::kFp16), "");
  CompareOptions options;
  options.any_nan_equal = true;
  options.max_ulp = 1 << 20;
  EXPECT_EQ(compare("x", expected, actual, Format::kFp16, options), "");
  EXPECT_NE(compare("x", expected, number, Format::kFp16, options), "");
}

TEST(ReferenceData, ContainsWhatItsModeNames) {
  for (const DataType type : {DataType::kFp16, DataType::kBf16, DataType::kFp32}) {
    const auto count_if = [&](Values values, auto&& predicate) {
      const std::vector<float> row = widen(make_values(type, 4096, values, 3), type, 0, 4096);
      return std::count_if(row.begin(), row.end(), predicate);
    };
    const auto is_nan = [](float v) { return std::isnan(v); };
    const auto is_small = [&](float v) {
      return v != 0 && std::abs(v) < (type == DataType::kFp16 ? 0x1p-14f : 0x1p-126f);
    };
    EXPECT_EQ(count_if(Values::kNormal, is_nan), 0);
    EXPECT_GT(count_if(Values::kNans, is_nan), 100);
    EXPECT_EQ(count_if(Values::kOnesWords, is_nan), 4096);
    EXPECT_EQ(count_if(Values::kSubnormals, is_small), 4096);
    EXPECT_GT(count_if(Values::kInfinities, [](float v) { return std::isinf(v); }), 100);
    EXPECT_EQ(count_if(Values::kNegativeZeros, [](float v) { return v == 0 && std::signbit(v); }), 4096);
    EXPECT_GT(count_if(Values::kZeroBlocks, [](float v) { return v == 0; }), 1000);
    EXPECT_LT(count_if(Values::kZeroBlocks, [](float v) { return v == 0; }), 4000);
  }
}

TEST(ReferenceData, IsTheSameOnEveryMachine) {
  Random random(1);
  EXPECT_EQ(random.next(), 0x910a2dec89025cc1ull);
  EXPECT_EQ(make_values(DataType::kBf16, 64, Values::kNormal, 9), make_values(DataType::kBf16, 64, Values::kNormal, 9));
  EXPECT_NE(make_values(DataType::kBf16, 64, Values::kNormal, 9),
            make_values(DataType::kBf16, 64, Values::kNormal, 10));
}

}  // namespace
}  // namespace commfuse::reference
