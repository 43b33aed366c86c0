// What the benchmark measures: operations found among kernels, and data for long calls.
#include "cli/bench_shape.hpp"

#include <gtest/gtest.h>

#include <set>

#include "commfuse/workspace.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse::cli {
namespace {

using reference::Case;
using reference::TensorId;

constexpr std::string_view kDeployment = R"({
  "name": "sample", "world_size": 4, "hidden_size": 4096, "dtype": "bf16", "max_tokens": 512,
  "operations": [
    {"op": "all_reduce", "patterns": ["all_reduce", "residual_rms_norm"]},
    {"op": "all_reduce", "patterns": ["residual_rms_norm"], "weight_bias": [true], "algorithms": ["one_shot"]}
  ]})";

KernelSpec shape(Op op, Pattern pattern, bool scattered = false) {
  KernelSpec spec;
  spec.op = op;
  spec.pattern = pattern;
  spec.world_size = 3;
  spec.hidden_size = 256;
  spec.group_size = 128;
  spec.latent_width = 64;
  spec.residual_scattered = scattered;
  return spec.normalised();
}

std::vector<std::pair<Op, Pattern>> every_pattern() {
  std::vector<std::pair<Op, Pattern>> all;
  for (const auto& op : runtime::kNames<Op>) {
    for (const Pattern pattern : patterns(op.value)) all.emplace_back(op.value, pattern);
  }
  return all;
}

TEST(BenchShape, KernelsOfOneOperationAreOneShape) {
  const std::vector<KernelSpec> kernels = Deployment::parse(kDeployment).kernels({"sm_90a"});
  const std::vector<BenchShape> shapes = shapes_of(kernels);
  ASSERT_EQ(shapes.size(), 3u);
  std::size_t count = 0;
  std::set<std::string> titles;
  for (const BenchShape& each : shapes) {
    count += each.kernels.size();
    titles.insert(each.title());
    EXPECT_TRUE(each.has(Algorithm::kOneShot));
    EXPECT_EQ(each.has(Algorithm::kTwoShot), !each.spec.weight_bias);
  }
  EXPECT_EQ(count, kernels.size());
  EXPECT_EQ(titles, (std::set<std::string>{"all_reduce_bf16_n4_h4096_fp32acc",
                                           "all_reduce_residual_rms_norm_bf16_n4_h4096_fp32acc",
                                           "all_reduce_residual_rms_norm_bf16_n4_h4096_fp32acc_bias1"}));
}

TEST(BenchShape, RotationBytesAreThoseOfTheAlgorithmsAskedFor) {
  const std::vector<BenchShape> shapes = shapes_of(Deployment::parse(kDeployment).kernels({"sm_90a"}));
  const std::uint64_t one = shapes[0].rotation_bytes(512, {Algorithm::kOneShot});
  const std::uint64_t two = shapes[0].rotation_bytes(512, {Algorithm::kTwoShot});
  EXPECT_EQ(one, std::uint64_t{3} * 512 * 8192);
  EXPECT_LT(two, one);
  EXPECT_EQ(shapes[0].rotation_bytes(512, {Algorithm::kTwoShot, Algorithm::kOneShot}), one);
}

TEST(BenchShape, EnlargedCasesAreShapedLikeRealOnesAndRepeatTheirInputs) {
  for (const auto& [op, pattern] : every_pattern()) {
    for (const bool scattered : {false, true}) {
      const KernelSpec spec = shape(op, pattern, scattered);
      const Case small = make_case(spec, 4, reference::Values::kNormal, 2);
      const Case real = make_case(spec, 11, reference::Values::kNormal, 2);
      const Case large = enlarge_case(small, 11);
      EXPECT_EQ(large.tokens, real.tokens);
      EXPECT_EQ(large.scale_strides, real.scale_strides);
      for (int rank = 0; rank < spec.world_size; ++rank) {
        for (int i = 0; i < reference::kTensorCount; ++i) {
          const auto id = static_cast<TensorId>(i);
          EXPECT_EQ(large.tensor(rank, id).used, real.tensor(rank, id).used) << spec.name() << ' ' << to_string(id);
          EXPECT_EQ(large.tensor(rank, id).bytes.size(), real.tensor(rank, id).bytes.size())
              << spec.name() << ' ' << to_string(id);
        }
        const reference::Bytes& in = large.tensor(rank, TensorId::kIn).bytes;
        const reference::Bytes& first = small.tensor(rank, TensorId::kIn).bytes;
        for (std::size_t at = 0; at < in.size(); ++at) ASSERT_EQ(in[at], first[at % first.size()]);
      }
    }
  }
}

TEST(BenchShape, MemoryEstimateCoversEveryTensorAndRotationBuffer) {
  for (const auto& [op, pattern] : every_pattern()) {
    const KernelSpec spec = shape(op, pattern);
    const Case data = make_case(spec, 64, reference::Values::kNormal, 2);
    std::uint64_t bytes = 0;
    for (const auto& rank : data.ranks) {
      for (const auto& tensor : rank) bytes += tensor.used ? tensor.bytes.size() : 0;
    }
    constexpr std::uint64_t kRotation = 1 << 20;
    EXPECT_GE(device_bytes_needed(spec, 64, kRotation), bytes + 3 * 3 * kRotation) << spec.name();
  }
}

}  // namespace
}  // namespace commfuse::cli
