// Reduce-scatter on a real GPU, all ranks as streams of this process.
#include <gtest/gtest.h>

#include <random>

#include "gpu/on_gpu.hpp"

namespace commfuse::gpu {
namespace {

using reference::Values;

class ReduceScatterOnGpu : public OnGpu {
 protected:
  static KernelSpec shape(Pattern pattern, int world_size, int hidden_size, DataType dtype = DataType::kBf16) {
    return shape_of(Op::kReduceScatter, pattern, world_size, hidden_size, dtype);
  }
};

TEST_F(ReduceScatterOnGpu, EveryPatternAgreesWithTheReferenceBitForBit) {
  for (const DataType dtype : {DataType::kBf16, DataType::kFp16}) {
    std::vector<KernelSpec> shapes;
    for (const Pattern pattern : patterns(Op::kReduceScatter)) shapes.push_back(shape(pattern, 4, 2048, dtype));
    expect_right(shapes, {1, 3, 130, 1025}, Values::kOutliers);
    expect_right(shapes, {5}, Values::kAnyBits);
  }
}

TEST_F(ReduceScatterOnGpu, EveryOptionAgreesWithTheReferenceBitForBit) {
  std::vector<KernelSpec> shapes;
  KernelSpec weights = shape(Pattern::kAddResidualRmsNorm, 3, 1536);
  weights.gamma_dtype = DataType::kFp32;
  weights.weight_bias = true;
  shapes.push_back(weights);
  KernelSpec narrow = shape(Pattern::kAddResidualRmsNorm, 3, 1536, DataType::kFp16);
  narrow.fp32_accumulate = false;
  shapes.push_back(narrow);
  for (const QuantLayout layout : {QuantLayout::kSwizzled8x4, QuantLayout::kLinear}) {
    KernelSpec fp4 = shape(Pattern::kResidualRmsNormOutFp4, 3, 1536);
    fp4.quant_layout = layout;
    shapes.push_back(fp4);
  }
  for (const int group : {32, 64, 256}) {
    KernelSpec grouped = shape(Pattern::kResidualRmsNormFp8Group, 3, 1536);
    grouped.group_size = group;
    shapes.push_back(grouped);
  }
  expect_right(shapes, {2, 400}, Values::kNormal);
}

class ReduceScatterWorldSizes : public ReduceScatterOnGpu, public ::testing::WithParamInterface<int> {};

TEST_P(ReduceScatterWorldSizes, AgreeWithTheReferenceBitForBit) {
  const int world_size = GetParam();
  std::vector<KernelSpec> shapes;
  for (const int hidden_size : {64, 2880, 7168}) {
    for (const Pattern pattern : {Pattern::kReduceScatter, Pattern::kResidualRmsNorm}) {
      shapes.push_back(shape(pattern, world_size, hidden_size));
    }
  }
  shapes.push_back(shape(Pattern::kAddResidualRmsNorm, world_size, 4096, DataType::kFp32));
  expect_right(shapes, {1, 2, 17, 256}, Values::kNormal);
  expect_right(shapes, {3}, Values::kOnesWords);
}

INSTANTIATE_TEST_SUITE_P(Gpu, ReduceScatterWorldSizes, ::testing::Values(1, 2, 3, 4, 6, 8, 12, 16));

TEST_F(ReduceScatterOnGpu, UnevenAndEmptyRunsAgreeWithTheReference) {
  const std::vector<KernelSpec> shapes = {shape(Pattern::kReduceScatter, 4, 2880),
                                          shape(Pattern::kAddResidualRmsNormFp8Block, 4, 7168),
                                          shape(Pattern::kResidualRmsNormFp4, 4, 2048)};
  expect_right_for_runs(shapes, {{0, 0, 0, 1}, {300, 0, 7, 1}, {0, 500, 0, 0}, {2, 2, 2, 2}}, Values::kAnyBits);
}

TEST_F(ReduceScatterOnGpu, TenThousandCallsOfAllSizesStayRight) {
  std::vector<KernelSpec> shapes = {shape(Pattern::kReduceScatter, 3, 2880), shape(Pattern::kResidualRmsNorm, 3, 4096),
                                    shape(Pattern::kAddResidualRmsNormFp8Block, 3, 7168)};
  const std::vector<KernelSpec> kernels = kernels_of(shapes);
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(3, bytes_for(kernels, 3 * 300));
  std::vector<std::unique_ptr<GroupOperation>> operations;
  std::vector<std::pair<std::size_t, std::unique_ptr<PlacedCase>>> cases;
  const std::vector<std::vector<std::int64_t>> rows = {{1, 0, 0}, {0, 0, 2}, {3, 2, 2}, {22, 21, 21}, {300, 0, 1}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    operations.push_back(std::make_unique<GroupOperation>(set, ranks, shapes[i]));
    for (const auto& each : rows) {
      cases.emplace_back(i,
                         std::make_unique<PlacedCase>(reference::make_case(shapes[i], each, Values::kAnyBits, i + 1)));
    }
  }
  std::mt19937 random(11);
  for (int call = 0; call < 10000; ++call) {
    const auto& [operation, placed] = cases[random() % cases.size()];
    LaunchOptions options = options_of(placed->data());
    options.dependent_launch = options.trigger_early = random() % 2 == 0;
    ASSERT_EQ(operations[operation]->launch(*placed, options), "");
    if (call % 500 != 499) continue;
    ASSERT_EQ(ranks.synchronise(), "");
  }
  for (const auto& [operation, placed] : cases) {
    placed->restore();
    ASSERT_EQ(operations[operation]->launch(*placed, options_of(placed->data())), "");
    ASSERT_EQ(ranks.synchronise(), "");
    ASSERT_EQ(placed->check(), "");
  }
}

TEST_F(ReduceScatterOnGpu, AMissingRankIsNamedByRanksWithAndWithoutRows) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 3, 1024);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(3, bytes_for(kernels_of({spec}), 9), std::chrono::milliseconds(200));
  GroupOperation operation(set, ranks, spec);
  PlacedCase placed(reference::make_case(spec, std::vector<std::int64_t>{2, 0, 1}, Values::kNormal, 3));
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(operation.prepare(rank, placed)(options_of(placed.data()), ranks.stream(rank)).ok());
  }
  EXPECT_NE(ranks.synchronise(), "");
  for (const int rank : {0, 1}) {
    const Failure failure = ranks.workspace(rank).failure();
    EXPECT_EQ(failure.code, Code::kTimeout);
    EXPECT_EQ(failure.op, Op::kReduceScatter);
    EXPECT_EQ(failure.operation, "residual_rms_norm");
    EXPECT_EQ(failure.awaited_rank, 2) << failure.text();
  }
  ranks.group().reset();
  ASSERT_EQ(operation.launch(placed, options_of(placed.data())), "");
  EXPECT_EQ(ranks.synchronise(), "");
  EXPECT_EQ(placed.check(), "");
}

TEST_F(ReduceScatterOnGpu, WrongArgumentsAreNamedAndNothingIsLaunched) {
  const KernelSpec spec = shape(Pattern::kAddResidualRmsNormFp8Block, 2, 1024);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(2, bytes_for(kernels_of({spec}), 4));
  GroupOperation operation(set, ranks, spec);
  PlacedCase placed(reference::make_case(spec, 4, Values::kNormal, 3));
  const ReduceScatterTensors good = placed.reduce_scatter_tensors(0);
  const auto refusal = [&](const ReduceScatterTensors& tensors, std::vector<std::int64_t> rows = {2, 2}) {
    return operation.reduce_scatter(0).launch(tensors, rows, {}, ranks.stream(0));
  };
  const auto without = [&](auto member) {
    ReduceScatterTensors bad = good;
    bad.*member = nullptr;
    return refusal(bad).subject;
  };
  EXPECT_EQ(without(&ReduceScatterTensors::in), "in");
  EXPECT_EQ(without(&ReduceScatterTensors::add_in), "add_in");
  EXPECT_EQ(without(&ReduceScatterTensors::residual_in), "residual_in");
  EXPECT_EQ(without(&ReduceScatterTensors::gamma), "gamma");
  EXPECT_EQ(without(&ReduceScatterTensors::residual_out), "residual_out");
  EXPECT_EQ(without(&ReduceScatterTensors::quant_out), "quant_out");
  EXPECT_EQ(without(&ReduceScatterTensors::scale_out), "scale_out");
  ReduceScatterTensors bad = good;
  bad.add_in = static_cast<const char*>(good.add_in) + 4;
  EXPECT_EQ(refusal(bad).subject, "add_in");
  bad = good;
  bad.residual_out = const_cast<void*>(good.in);
  EXPECT_EQ(refusal(bad).subject, "residual_out");
  bad = good;
  bad.scale_stride = 6;
  EXPECT_EQ(refusal(bad).subject, "scale_stride");
  EXPECT_EQ(refusal(good, {2}).subject, "rows_of_ranks");
  EXPECT_EQ(refusal(good, {3, -1}).subject, "rows_of_ranks");
  EXPECT_EQ(refusal(good, {std::int64_t{1} << 30, std::int64_t{1} << 30}).subject, "rows_of_ranks");
  bad = good;
  bad.scale_stride = 0;
  EXPECT_EQ(refusal(bad, {400, 0}).code, Code::kCapacity);
  EXPECT_TRUE(refusal(good, {0, 0}).ok());
  EXPECT_TRUE(operation.reduce_scatter(0).launch(good, 0, {}, ranks.stream(0)).ok());
  EXPECT_EQ(ranks.synchronise(), "");
}

}  // namespace
}  // namespace commfuse::gpu
