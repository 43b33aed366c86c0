// The benchmarks, and the processes that some of them start.
#include <benchmark/benchmark.h>

#include <string_view>

#include "bench/worker.hpp"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--worker") return commfuse::bench::work({argv + 2, argv + argc});
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
