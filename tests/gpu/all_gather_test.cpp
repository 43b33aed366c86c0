// All-gather on a real GPU, all ranks as streams of this process.
#include <gtest/gtest.h>

#include <random>

#include "gpu/on_gpu.hpp"
#include "runtime/driver.hpp"

namespace commfuse::gpu {
namespace {

using reference::Values;

class AllGatherOnGpu : public OnGpu {
 protected:
  static KernelSpec shape(Pattern pattern, int world_size, int hidden_size, DataType dtype = DataType::kBf16) {
    return shape_of(Op::kAllGather, pattern, world_size, hidden_size, dtype);
  }
};

TEST_F(AllGatherOnGpu, EveryPatternAgreesWithTheReferenceBitForBit) {
  for (const DataType dtype : {DataType::kBf16, DataType::kFp16}) {
    std::vector<KernelSpec> shapes;
    for (const Pattern pattern : patterns(Op::kAllGather)) {
      for (const int hidden_size : {2112, 7168}) shapes.push_back(shape(pattern, 4, hidden_size, dtype));
    }
    expect_right(shapes, {1, 3, 130, 1025}, Values::kOutliers);
    expect_right(shapes, {5}, Values::kAnyBits);
  }
  KernelSpec weights = shape(Pattern::kDualRmsNormFp8Block, 3, 2112);
  weights.gamma_dtype = DataType::kFp32;
  weights.weight_bias = true;
  expect_right({weights, shape(Pattern::kDualRmsNorm, 3, 2048, DataType::kFp32)}, {2, 400}, Values::kNormal);
}

TEST_F(AllGatherOnGpu, EveryBitArrives) {
  const std::vector<KernelSpec> shapes = {shape(Pattern::kAllGather, 4, 2880),
                                          shape(Pattern::kAllGather, 4, 1024, DataType::kFp32)};
  for (const Values values : {Values::kComplements, Values::kOnesWords, Values::kNans, Values::kNegativeZeros}) {
    expect_right(shapes, {3, 257}, values);
  }
}

class AllGatherWorldSizes : public AllGatherOnGpu, public ::testing::WithParamInterface<int> {};

TEST_P(AllGatherWorldSizes, AgreeWithTheReferenceBitForBit) {
  const int world_size = GetParam();
  std::vector<KernelSpec> shapes;
  for (const int hidden_size : {512, 2112, 7168}) {
    for (const Pattern pattern : {Pattern::kAllGather, Pattern::kDualRmsNorm}) {
      shapes.push_back(shape(pattern, world_size, hidden_size));
    }
  }
  expect_right(shapes, {1, 2, 17, 256}, Values::kNormal);
}

INSTANTIATE_TEST_SUITE_P(Gpu, AllGatherWorldSizes, ::testing::Values(1, 2, 3, 4, 6, 8, 12, 16));

TEST_F(AllGatherOnGpu, UnevenAndEmptyRunsAgreeWithTheReference) {
  const std::vector<KernelSpec> shapes = {shape(Pattern::kAllGather, 4, 2880), shape(Pattern::kDualRmsNorm, 4, 2112),
                                          shape(Pattern::kDualRmsNormFp8Block, 4, 2112)};
  expect_right_for_runs(shapes, {{0, 0, 0, 1}, {300, 0, 7, 1}, {0, 500, 0, 0}, {2, 2, 2, 2}}, Values::kAnyBits);
}

TEST_F(AllGatherOnGpu, TenThousandCallsOfAllSizesStayRight) {
  std::vector<KernelSpec> shapes = {shape(Pattern::kAllGather, 3, 2880), shape(Pattern::kDualRmsNormFp8Block, 3, 2112)};
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
  std::mt19937 random(13);
  for (int call = 0; call < 10000; ++call) {
    const auto& [operation, placed] = cases[random() % cases.size()];
    LaunchOptions options = options_of(placed->data());
    options.dependent_launch = options.trigger_early = random() % 2 == 0;
    ASSERT_EQ(operations[operation]->launch(*placed, options), "");
    if (call % 500 == 499) {
      ASSERT_EQ(ranks.synchronise(), "");
    }
  }
  for (const auto& [operation, placed] : cases) {
    placed->restore();
    ASSERT_EQ(operations[operation]->launch(*placed, options_of(placed->data())), "");
    ASSERT_EQ(ranks.synchronise(), "");
    ASSERT_EQ(placed->check(), "");
  }
}

TEST_F(AllGatherOnGpu, RowsMayLieWhereTheyBelongInTheResult) {
  const KernelSpec spec = shape(Pattern::kAllGather, 3, 2880);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(3, bytes_for(kernels_of({spec}), 3 * 40));
  GroupOperation operation(set, ranks, spec);
  const std::vector<std::int64_t> rows = {5, 0, 40};
  PlacedCase placed(reference::make_case(spec, rows, Values::kAnyBits, 4));
  for (int rank = 0; rank < 3; ++rank) {
    AllGatherTensors tensors = placed.all_gather_tensors(rank);
    auto* own = static_cast<char*>(tensors.out) +
                placed.data().rows[static_cast<std::size_t>(rank)].begin * spec.hidden_size * size_of(spec.dtype);
    const reference::Bytes& in = placed.data().tensor(rank, reference::TensorId::kIn).bytes;
    if (!in.empty()) {
      COMMFUSE_DRIVER(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(own), in.data(), in.size()));
    }
    tensors.in = own;
    ASSERT_TRUE(operation.all_gather(rank).launch(tensors, rows, {}, ranks.stream(rank)).ok());
  }
  ASSERT_EQ(ranks.synchronise(), "");
  EXPECT_EQ(placed.check(), "");
}

TEST_F(AllGatherOnGpu, WrongArgumentsAreNamedAndNothingIsLaunched) {
  const KernelSpec spec = shape(Pattern::kDualRmsNormFp8Block, 2, 2112);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(2, bytes_for(kernels_of({spec}), 4));
  GroupOperation operation(set, ranks, spec);
  PlacedCase placed(reference::make_case(spec, 4, Values::kNormal, 2));
  const AllGatherTensors good = placed.all_gather_tensors(0);
  const auto refusal = [&](const AllGatherTensors& tensors, std::vector<std::int64_t> rows = {2, 2}) {
    return operation.all_gather(0).launch(tensors, rows, {}, ranks.stream(0));
  };
  const auto without = [&](auto member) {
    AllGatherTensors bad = good;
    bad.*member = nullptr;
    return refusal(bad).subject;
  };
  EXPECT_EQ(without(&AllGatherTensors::in), "in");
  EXPECT_EQ(without(&AllGatherTensors::x_gamma), "x_gamma");
  EXPECT_EQ(without(&AllGatherTensors::y_gamma), "y_gamma");
  EXPECT_EQ(without(&AllGatherTensors::out), "out");
  EXPECT_EQ(without(&AllGatherTensors::x_norm_out), "x_norm_out");
  EXPECT_EQ(without(&AllGatherTensors::y_norm_out), "y_norm_out");
  EXPECT_EQ(without(&AllGatherTensors::quant_out), "quant_out");
  EXPECT_EQ(without(&AllGatherTensors::scale_out), "scale_out");
  AllGatherTensors bad = good;
  bad.y_norm_stride = spec.kv_lora_rank + 1;
  EXPECT_EQ(refusal(bad).subject, "y_norm_stride");
  bad = good;
  bad.y_norm_out = static_cast<char*>(good.out) + 16;
  EXPECT_EQ(refusal(bad).code, Code::kInvalidArgument);
  bad = good;
  bad.in = static_cast<const char*>(good.in) + 2;
  EXPECT_EQ(refusal(bad).subject, "in");
  EXPECT_EQ(refusal(good, {2}).subject, "rows_of_ranks");
  bad = good;
  bad.scale_stride = 0;
  EXPECT_EQ(refusal(bad, {400, 0}).code, Code::kCapacity);
  EXPECT_TRUE(refusal(good, {0, 0}).ok());
  EXPECT_EQ(ranks.synchronise(), "");
}

}  // namespace
}  // namespace commfuse::gpu
