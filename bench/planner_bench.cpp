// The part of a launch that is not the driver's.
#include <benchmark/benchmark.h>

#include <vector>

#include "bench/workload.hpp"
#include "commfuse/planner.hpp"

namespace commfuse::bench {
namespace {

void plan_call(benchmark::State& state) {
  std::vector<KernelSpec> kernels;
  KernelSpec spec = kernel_of(Pattern::kResidualRmsNorm);
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    spec.algorithm = algorithm;
    for (const Geometry& geometry : geometries(spec)) {
      spec.threads = geometry.threads;
      spec.cluster = geometry.cluster;
      kernels.push_back(spec);
    }
  }
  PlanRequest request;
  request.kernels = kernels;
  request.tokens = state.range(0);
  const DeviceCaps caps;
  for (auto _ : state) {
    benchmark::DoNotOptimize(request);
    benchmark::DoNotOptimize(plan(request, caps));
  }
}
BENCHMARK(plan_call)->Arg(1)->Arg(64)->Arg(8192);

}  // namespace
}  // namespace commfuse::bench
