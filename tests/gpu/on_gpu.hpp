// What the tests of operations on a real GPU share: all ranks are streams of this process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commfuse/engine.hpp"
#include "gpu/loopback.hpp"
#include "runtime/pattern.hpp"

namespace commfuse::gpu {

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << "needs a GPU: " << reason;
    context_ = std::make_unique<DeviceContext>();
  }

  static KernelSpec shape_of(Op op, Pattern pattern, int world_size, int hidden_size, DataType dtype) {
    KernelSpec spec;
    spec.op = op;
    spec.pattern = pattern;
    spec.world_size = world_size;
    spec.hidden_size = hidden_size;
    spec.dtype = spec.gamma_dtype = dtype;
    spec.group_size = 128;
    spec.latent_width = hidden_size / 2;
    spec.arch = current_arch();
    return spec.normalised();
  }
  /// All algorithms that need no registered tensors, all geometries.
  static std::vector<KernelSpec> kernels_of(const std::vector<KernelSpec>& shapes) {
    std::vector<KernelSpec> kernels;
    for (KernelSpec spec : shapes) {
      for (const Algorithm algorithm : runtime::algorithms_of(spec.op)) {
        if (algorithm == Algorithm::kDirect) continue;
        spec.algorithm = algorithm;
        for (const Geometry& geometry : geometries(spec)) {
          spec.threads = geometry.threads;
          spec.cluster = geometry.cluster;
          kernels.push_back(spec);
        }
      }
    }
    return kernels;
  }
  static std::uint64_t bytes_for(const std::vector<KernelSpec>& kernels, std::int64_t tokens) {
    std::uint64_t bytes = 0;
    for (const KernelSpec& spec : kernels) bytes = std::max(bytes, required_rotation_bytes(spec, tokens));
    return bytes;
  }
  /// One call of each shape, algorithm and number of tokens, compared with the reference.
  static void expect_right(const std::vector<KernelSpec>& shapes, const std::vector<std::int64_t>& tokens,
                           reference::Values values) {
    std::vector<std::vector<std::int64_t>> rows;
    for (const std::int64_t count : tokens) {
      rows.push_back(reference::balanced_rows(count, shapes.front().world_size));
    }
    expect_right_for_runs(shapes, rows, values);
  }
  /// The same for the rows that each rank owns.
  static void expect_right_for_runs(const std::vector<KernelSpec>& shapes,
                                    const std::vector<std::vector<std::int64_t>>& rows, reference::Values values) {
    const std::vector<KernelSpec> kernels = kernels_of(shapes);
    const KernelSet set = KernelSet::warm_up(kernels);
    std::int64_t longest = 0;
    for (const auto& each : rows) longest = std::max(longest, *std::max_element(each.begin(), each.end()));
    const int world_size = shapes.front().world_size;
    Ranks ranks(world_size, bytes_for(kernels, longest * world_size));
    std::uint64_t seed = 1;
    for (KernelSpec spec : shapes) {
      GroupOperation operation(set, ranks, spec);
      for (const std::vector<std::int64_t>& each : rows) {
        for (const Algorithm algorithm : runtime::algorithms_of(spec.op)) {
          if (algorithm == Algorithm::kDirect) continue;
          spec.algorithm = algorithm;
          ++seed;
          PlacedCase placed(reference::make_case(spec, each, values, seed, seed % 2 == 0));
          LaunchOptions options = options_of(placed.data(), seed % 2 == 0);
          options.dependent_launch = options.trigger_early = seed % 3 == 0;
          ASSERT_EQ(operation.launch(placed, options), "");
          ASSERT_EQ(ranks.synchronise(), "");
          ASSERT_EQ(placed.check(), "");
        }
      }
    }
  }

  std::unique_ptr<DeviceContext> context_;
};

}  // namespace commfuse::gpu
