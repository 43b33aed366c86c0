#include "sim/kernels/list.hpp"

#include <array>
#include <unordered_set>

#include "commfuse/planner.hpp"

namespace commfuse::sim {
namespace {

/// Kernels that share a template.
struct Family {
  Op op;
  Algorithm algorithm;
  Pattern plain;  ///< without a norm
};
constexpr std::array kReducing = {
    Family{Op::kAllReduce, Algorithm::kOneShot, Pattern::kAllReduce},
    Family{Op::kAllReduce, Algorithm::kTwoShot, Pattern::kAllReduce},
    Family{Op::kReduceScatter, Algorithm::kOneShot, Pattern::kReduceScatter},
};

constexpr Family kDirect{Op::kAllReduce, Algorithm::kDirect, Pattern::kAllReduce};

class List {
 public:
  /// With the geometries that the planner would have it compiled with.
  void add(KernelSpec spec) {
    spec = normal(spec);
    for (const Geometry& geometry : geometries(spec)) add(spec, geometry);
  }
  /// With a geometry of the test's own.
  void add(KernelSpec spec, const Geometry& geometry) {
    spec = normal(spec);
    spec.threads = geometry.threads;
    spec.cluster = geometry.cluster;
    spec.validate();
    if (seen_.insert(spec.name()).second) kernels_.push_back(spec);
  }
  std::vector<KernelSpec> take() { return std::move(kernels_); }

 private:
  static KernelSpec normal(KernelSpec spec) {
    spec.arch = "sm_90a";
    if (spec.gamma_dtype != DataType::kFp32) spec.gamma_dtype = spec.dtype;
    return spec.normalised();
  }

  std::vector<KernelSpec> kernels_;
  std::unordered_set<std::string> seen_;
};

KernelSpec shape(Pattern pattern, const Family& family, int world_size, int hidden_size, DataType dtype) {
  KernelSpec spec;
  spec.op = family.op;
  spec.pattern = pattern;
  spec.algorithm = family.algorithm;
  spec.world_size = world_size;
  spec.hidden_size = hidden_size;
  spec.dtype = dtype;
  spec.gamma_dtype = dtype;
  if (pattern == Pattern::kResidualRmsNormFp8Group) spec.group_size = 128;
  if (pattern == Pattern::kLatentNorm) spec.latent_width = 64;
  return spec;
}

}  // namespace

std::vector<KernelSpec> simulated_kernels() {
  List list;
  for (const Family& family : kReducing) {
    for (const Pattern pattern : {family.plain, Pattern::kResidualRmsNorm}) {
      // The protocol, for every world size: rows of two warps and a bit, so that the last warp is partly idle.
      for (const int world_size : {1, 2, 3, 4, 6, 8, 16}) {
        list.add(shape(pattern, family, world_size, 528, DataType::kBf16), {64, 1});
      }
      for (const int world_size : {2, 4}) {
        for (const DataType dtype : {DataType::kFp16, DataType::kFp32}) {
          list.add(shape(pattern, family, world_size, 264, dtype), {64, 1});
        }
        KernelSpec rounding = shape(pattern, family, world_size, 264, DataType::kBf16);
        rounding.fp32_accumulate = false;
        list.add(rounding, {64, 1});
        rounding.dtype = rounding.gamma_dtype = DataType::kFp16;
        list.add(rounding, {64, 1});
      }
      // Hidden sizes of live models, with the planner's own geometries; the smallest possible; the largest.
      for (const int hidden_size : {8, 2880, 5120, 7168, 18432}) {
        list.add(shape(pattern, family, 2, hidden_size, DataType::kBf16));
      }
      list.add(shape(pattern, family, 2, 65536, DataType::kFp32));
      // examples/deployments/llama-3.1-70b-tp8.json, which scripts/quickstart.sh runs.
      list.add(shape(pattern, family, 8, 8192, DataType::kBf16));
    }
    // A row on a cluster must have the same bits as on a block.
    for (const int cluster : {1, 2, 4, 8}) {
      list.add(shape(Pattern::kResidualRmsNorm, family, 3, 2048, DataType::kBf16), {32, cluster});
    }
    // Every pattern and option.
    for (const Pattern pattern : patterns(family.op)) {
      for (const DataType dtype : {DataType::kFp16, DataType::kBf16}) {
        list.add(shape(pattern, family, 3, 768, dtype), {64, 1});
      }
      KernelSpec scattered = shape(pattern, family, 3, 768, DataType::kBf16);
      scattered.residual_scattered = true;
      list.add(scattered, {64, 1});
      KernelSpec weights = shape(pattern, family, 2, 768, DataType::kBf16);
      weights.gamma_dtype = DataType::kFp32;
      weights.weight_bias = true;
      list.add(weights, {32, 2});
    }
    for (const QuantLayout layout : {QuantLayout::kSwizzled8x4, QuantLayout::kLinear}) {
      KernelSpec fp4 = shape(Pattern::kResidualRmsNormFp4, family, 3, 768, DataType::kBf16);
      fp4.quant_layout = layout;
      list.add(fp4, {64, 1});
    }
    for (const int group_size : {8, 16, 32, 64, 256}) {
      KernelSpec group = shape(Pattern::kResidualRmsNormFp8Group, family, 2, 768, DataType::kFp16);
      group.group_size = group_size;
      list.add(group, {64, 1});
    }
  }
  // Direct kernels: the protocol for several world sizes, every pattern, and outputs that only the owner has.
  for (const Pattern pattern : {kDirect.plain, Pattern::kResidualRmsNorm}) {
    for (const int world_size : {1, 2, 3, 4, 8}) {
      list.add(shape(pattern, kDirect, world_size, 528, DataType::kBf16), {64, 1});
    }
    list.add(shape(pattern, kDirect, 2, 8192, DataType::kBf16));
  }
  for (const Pattern pattern : patterns(kDirect.op)) {
    KernelSpec direct = shape(pattern, kDirect, 3, 768, DataType::kBf16);
    list.add(direct, {64, 1});
    direct.residual_scattered = true;
    list.add(direct, {64, 1});
  }
  return list.take();
}

}  // namespace commfuse::sim
