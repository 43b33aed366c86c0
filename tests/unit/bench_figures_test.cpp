// What the benchmark makes of its samples: medians, floors, ratios, tables.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/bench_device.hpp"
#include "cli/bench_published.hpp"
#include "cli/bench_report.hpp"
#include "cli/bench_stats.hpp"
#include "cli/bench_traffic.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse::cli {
namespace {

KernelSpec shape(Pattern pattern, int world_size, int hidden_size) {
  KernelSpec spec;
  spec.pattern = pattern;
  spec.world_size = world_size;
  spec.hidden_size = hidden_size;
  spec.group_size = 128;
  spec.latent_width = 512;
  return spec.normalised();
}

TEST(BenchStats, MedianIsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({8, 1, 4, 2}), 3);
}

TEST(BenchStats, TimePerCallLeavesOutTheFirstReplays) {
  const std::vector<float> replays = {90, 80, 1, 3, 2};
  EXPECT_DOUBLE_EQ(microseconds_per_call(replays, 2, 50), 40);
  EXPECT_DOUBLE_EQ(microseconds_per_call(replays, 9, 50), 0);
}

TEST(BenchTraffic, CountsInputsOutputsAndOneResidual) {
  constexpr std::uint64_t kMatrix = 16 * 1024 * 2;
  // Four inputs, four outputs.
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kAllReduce, 4, 1024), 16), 8 * kMatrix);
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kLatentNorm, 4, 1024), 16), 8 * kMatrix);
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kRmsNorm, 4, 1024), 16), 8 * kMatrix);
  // Four inputs, twice four outputs, the residual once.
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kResidualRmsNorm, 4, 1024), 16), 13 * kMatrix);
  // The four parts of the normalised rows are one matrix.
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kResidualRmsNormPartialOut, 4, 1024), 16), 10 * kMatrix);
  KernelSpec scattered = shape(Pattern::kResidualRmsNorm, 4, 1024);
  scattered.residual_scattered = true;
  EXPECT_EQ(unavoidable_bytes(scattered, 16), 10 * kMatrix);
  // The mixture is fp32 and read once, with two numbers a token.
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kAttnResCombine, 4, 1024), 16), 15 * kMatrix + 16 * 8);
}

TEST(BenchTraffic, AReduceScatterWritesItsResultsOnce) {
  constexpr std::uint64_t kMatrix = 16 * 1024 * 2;
  KernelSpec spec = shape(Pattern::kReduceScatter, 4, 1024);
  spec.op = Op::kReduceScatter;
  EXPECT_EQ(unavoidable_bytes(spec, 16), 5 * kMatrix);
  // Four inputs; what is added, the residual and two results once.
  spec.pattern = Pattern::kAddResidualRmsNorm;
  EXPECT_EQ(unavoidable_bytes(spec, 16), 8 * kMatrix);
}

TEST(BenchTraffic, CountsQuantisedBytesAndScales) {
  constexpr std::uint64_t kElements = 16 * 1024;
  constexpr std::uint64_t kPlain = 9 * kElements * 2;  // inputs, residual_out, residual once
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kResidualRmsNormFp8, 4, 1024), 16), kPlain + 4 * kElements);
  EXPECT_EQ(unavoidable_bytes(shape(Pattern::kResidualRmsNormFp8Block, 4, 1024), 16),
            kPlain + 4 * (kElements + kElements / 128 * 4));
  KernelSpec fp4 = shape(Pattern::kResidualRmsNormFp4, 4, 1024);
  fp4.quant_layout = QuantLayout::kLinear;
  EXPECT_EQ(unavoidable_bytes(fp4, 16), kPlain + 4 * (kElements / 2 + kElements / 16));
}

TEST(BenchTraffic, EveryPatternHasAFloorThatGrowsWithTheTokens) {
  for (const auto& op : runtime::kNames<Op>) {
    for (const Pattern pattern : patterns(op.value)) {
      KernelSpec spec = shape(pattern, 8, 4096);
      spec.op = op.value;
      EXPECT_GE(unavoidable_bytes(spec, 128), std::uint64_t{8} * 128 * 4096 * 2) << spec.name();
      EXPECT_GT(unavoidable_bytes(spec, 256), unavoidable_bytes(spec, 128)) << spec.name();
    }
  }
}

TEST(BenchTraffic, AThousandMegabytesAtAThousandGigabytesASecondTakeAMillisecond) {
  EXPECT_DOUBLE_EQ(traffic_floor_us(1'000'000'000, 1000), 1000);
}

TEST(BenchPublished, IsFoundWhereEverythingMatches) {
  const Published known = published_times(shape(Pattern::kResidualRmsNorm, 8, 8192), 128);
  EXPECT_EQ(known.one_shot_us, 133);
  EXPECT_EQ(known.two_shot_us, 78.3);
  EXPECT_EQ(known.of(Algorithm::kOneShot), 133);
  EXPECT_EQ(known.best(), 78.3);
  const Published plain = published_times(shape(Pattern::kAllReduce, 4, 8192), 1);
  EXPECT_EQ(plain.best(), 3.46);
  EXPECT_EQ(plain.two_shot_us, std::nullopt);
}

TEST(BenchPublished, IsEmptyWhereSomethingDiffers) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 8, 8192);
  EXPECT_EQ(published_times(spec, 2).best(), std::nullopt);
  EXPECT_EQ(published_times(shape(Pattern::kResidualRmsNorm, 3, 8192), 1).best(), std::nullopt);
  EXPECT_EQ(published_times(shape(Pattern::kResidualRmsNorm, 8, 5120), 1).best(), std::nullopt);
  EXPECT_EQ(published_times(shape(Pattern::kResidualRmsNormFp8, 8, 8192), 1).best(), std::nullopt);
  EXPECT_EQ(published_times(shape(Pattern::kAllReduce, 8, 8192), 128).best(), std::nullopt);
  KernelSpec other = spec;
  other.op = Op::kReduceScatter;
  EXPECT_EQ(published_times(other, 1).best(), std::nullopt);
  other = spec;
  other.dtype = DataType::kFp16;
  EXPECT_EQ(published_times(other, 1).best(), std::nullopt);
  other = spec;
  other.fp32_accumulate = false;
  EXPECT_EQ(published_times(other, 1).best(), std::nullopt);
}

TEST(BenchDevice, ReadsTheDriverReleaseOfBothKernelModules) {
  EXPECT_EQ(driver_release("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue Nov  4 2025\nGCC version:  "
                           "gcc version 12.2.0 (Debian)"),
            "580.159.03");
  EXPECT_EQ(driver_release("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57  Release Build"), "575.57");
  EXPECT_EQ(driver_release(""), "");
}

/// One right and one wrong measurement of two tokens counts of one shape.
BenchResult sample_result() {
  BenchResult result;
  result.machine = {"node", "NVIDIA H200", 132, "580.159, CUDA 13.0", "13.0.88"};
  result.deployment = "sample";
  result.world_size = 4;
  result.calls = 50;
  result.replays = 12;
  result.latency = {.flag_us = 2, .flag_dependent_us = 1, .empty_us = 0.8, .empty_dependent_us = 0.5};
  result.copies = {{1 << 30, true, 2700}, {1 << 30, false, 4000}};
  Measurement right;
  right.title = "shape";
  right.kernel = shape(Pattern::kResidualRmsNorm, 4, 8192);
  right.tokens = 16;
  right.planned = true;
  right.checked_tokens = 16;
  right.microseconds = 4.095;
  Measurement wrong = right;
  wrong.dependent = true;
  wrong.failed = true;
  wrong.microseconds.reset();
  wrong.problem = "row 3 differs";
  result.measurements = {right, wrong};
  return result;
}

TEST(BenchFigures, AreRatiosToTheFloorsOfTheSameRun) {
  const BenchResult result = sample_result();
  const Figures figures = figures_of(result, result.measurements[0]);
  EXPECT_DOUBLE_EQ(*figures.of_latency_floor, 4.095 / 2);
  // 13 matrices of 16 rows of 16 KiB at the faster copy's 4000 GB/s.
  EXPECT_DOUBLE_EQ(figures.traffic_floor_us, 13.0 * 16 * 16384 / 4e6);
  EXPECT_DOUBLE_EQ(*figures.of_traffic_floor, 4.095 / figures.traffic_floor_us);
  EXPECT_DOUBLE_EQ(*figures.of_published_best, 4.095 / 8.19);
  EXPECT_DOUBLE_EQ(figures_of(result, result.measurements[1]).latency_floor_us, 1);
}

TEST(BenchFigures, AWrongResultHasNoTimeAnywhere) {
  const BenchResult result = sample_result();
  EXPECT_TRUE(result.failed());
  const Figures figures = figures_of(result, result.measurements[1]);
  EXPECT_EQ(figures.of_latency_floor, std::nullopt);
  EXPECT_EQ(figures.of_traffic_floor, std::nullopt);
  EXPECT_EQ(figures.of_published_best, std::nullopt);
  const std::string text = bench_text(result);
  EXPECT_NE(text.find("WRONG"), std::string::npos);
  EXPECT_NE(text.find("row 3 differs"), std::string::npos);
  const nlohmann::json document = bench_document(result);
  EXPECT_TRUE(document["measurements"][1]["microseconds"].is_null());
  EXPECT_EQ(document["measurements"][1]["problem"], "row 3 differs");
}

TEST(BenchFigures, DocumentNamesMachineFloorsAndSource) {
  BenchResult result = sample_result();
  result.measurements.pop_back();
  EXPECT_FALSE(result.failed());
  const nlohmann::json document = bench_document(result);
  EXPECT_EQ(document["machine"]["device"], "NVIDIA H200");
  EXPECT_EQ(document["floors"]["latency_us"]["dependent"], 1);
  EXPECT_EQ(document["floors"]["copy_gb_per_s"], 4000);
  EXPECT_EQ(document["compile_count"], 0);
  EXPECT_EQ(document["published_source"], kPublishedSource);
  EXPECT_EQ(document["measurements"][0]["published_us"], 8.19);
  EXPECT_EQ(document["measurements"][0]["microseconds"], 4.095);
  EXPECT_NE(bench_text(result).find("one_shot *"), std::string::npos);
}

TEST(BenchFigures, CompilingWhileTimesAreTakenIsAFailure) {
  BenchResult result = sample_result();
  result.measurements.pop_back();
  result.compile_count = 1;
  EXPECT_TRUE(result.failed());
  EXPECT_NE(bench_text(result).find("not to be trusted"), std::string::npos);
}

}  // namespace
}  // namespace commfuse::cli
