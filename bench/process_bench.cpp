// Whole processes: a deployment cold and warm, on its own and with others that want the same.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "bench/worker.hpp"
#include "bench/workload.hpp"

namespace commfuse::bench {
namespace {

void count(benchmark::State& state, const std::vector<WorkerReport>& reports) {
  long peak = 0;
  int compiled = 0;
  for (const WorkerReport& report : reports) {
    peak = std::max(peak, report.peak_kib);
    compiled += report.compiled;
  }
  state.counters["peak_MiB"] = static_cast<double>(peak) / 1024;
  state.counters["compiled"] = compiled;
}

/// So many processes, so many hidden sizes: every kernel compiled once between them. A process compiles one kernel at a
/// time, so that what is measured is how well they share.
void build_cold(benchmark::State& state) {
  const int processes = static_cast<int>(state.range(0));
  const int hidden_sizes = static_cast<int>(state.range(1));
  const auto kernels = static_cast<int>(deployment_of(hidden_sizes).kernels().size());
  for (auto _ : state) {
    const TemporaryFolder folder;
    const std::vector<WorkerReport> reports = run_workers(processes, folder.path(), hidden_sizes, 1);
    int compiled = 0;
    for (const WorkerReport& report : reports) compiled += report.compiled;
    if (compiled != kernels) {
      state.SkipWithError("the kernels were not compiled once each");
      break;
    }
    count(state, reports);
  }
}
BENCHMARK(build_cold)
    ->ArgNames({"processes", "hidden_sizes"})
    ->ArgsProduct({{1, 2, 8}, {1, 29}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(1);

/// A process from its start to its end, with everything in the cache.
void start_process_warm(benchmark::State& state) {
  const TemporaryFolder folder;
  const int hidden_sizes = static_cast<int>(state.range(0));
  fill_cache(folder.path(), deployment_of(hidden_sizes).kernels());
  // The first start also remembers which build the compiler is.
  std::vector<WorkerReport> reports = run_workers(1, folder.path(), hidden_sizes, 1);
  for (auto _ : state) {
    reports = run_workers(1, folder.path(), hidden_sizes, 1);
    if (reports[0].compiled != 0 || reports[0].nvrtc_calls != 0 || reports[0].nvrtc_mapped) {
      state.SkipWithError("a warm start has used the compiler");
      break;
    }
  }
  count(state, reports);
  state.counters["kernels"] = reports[0].hits;
}
BENCHMARK(start_process_warm)->Arg(29)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace commfuse::bench
