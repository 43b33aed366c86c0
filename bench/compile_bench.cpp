// One cold compilation beside that of a kernel which does nothing, in the same process.
#include <benchmark/benchmark.h>

#include "bench/workload.hpp"
#include "runtime/compiler.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::bench {
namespace {

const runtime::Nvrtc& nvrtc() {
  static runtime::Toolchains& toolchains = *new runtime::Toolchains(env(), runtime::ToolchainMemo({}));
  return toolchains.for_arch("sm_90a").nvrtc();
}

/// `state` with NVRTC's phases beside it.
void compile_often(benchmark::State& state, const runtime::Program& program) {
  (void)compile(nvrtc(), program);  // NVRTC's own set-up happens at its first program
  runtime::CompileTimes sum;
  for (auto _ : state) {
    const runtime::CompileTimes times = compile(nvrtc(), program).times;
    sum.front_end += times.front_end;
    sum.optimizer += times.optimizer;
    sum.assembler += times.assembler;
  }
  const auto mean = [](double value) { return benchmark::Counter(value, benchmark::Counter::kAvgIterations); };
  state.counters["front_end_ms"] = mean(sum.front_end);
  state.counters["optimizer_ms"] = mean(sum.optimizer);
  state.counters["assembler_ms"] = mean(sum.assembler);
}

void compile_empty_kernel(benchmark::State& state) {
  compile_often(state, {"empty", "extern \"C\" __global__ void empty() {}\n", "sm_90a", "the benchmark", {}});
}
BENCHMARK(compile_empty_kernel)->Unit(benchmark::kMillisecond);

void compile_kernel(benchmark::State& state, Pattern pattern) {
  compile_often(state, runtime::program_of(kernel_of(pattern)));
}
BENCHMARK_CAPTURE(compile_kernel, all_reduce, Pattern::kAllReduce)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compile_kernel, residual_rms_norm, Pattern::kResidualRmsNorm)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compile_kernel, residual_rms_norm_out_fp4, Pattern::kResidualRmsNormOutFp4)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace commfuse::bench
