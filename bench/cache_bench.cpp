// From a spec to a key, from a key to a cubin, and a whole warm start.
#include <benchmark/benchmark.h>

#include <utility>
#include <vector>

#include "bench/workload.hpp"
#include "cache/entry.hpp"
#include "commfuse/engine.hpp"
#include "runtime/kernel_signature.hpp"
#include "runtime/kernel_table.hpp"

namespace commfuse::bench {
namespace {

void compute_key(benchmark::State& state) {
  const KernelSpec spec = kernel_of(Pattern::kResidualRmsNorm);
  for (auto _ : state) {
    const cache::Signature signature = runtime::signature_of(spec, runtime::program_of(spec), "13.0.88 CL-36424714");
    benchmark::DoNotOptimize(signature.key());
  }
}
BENCHMARK(compute_key)->Unit(benchmark::kMicrosecond);

void look_up_in_cache(benchmark::State& state) {
  const TemporaryFolder folder;
  const KernelSpec spec = kernel_of(Pattern::kResidualRmsNorm);
  fill_cache(folder.path(), {spec});
  const cache::Store store = open_store(folder.path());
  const cache::EntryInfo entry = store.list().at(0);
  const std::string signature = cache::Metadata::parse(entry.metadata_json).signature_json;
  for (auto _ : state) {
    const cache::Lookup found = store.find(entry.key, signature);
    if (!found) {
      state.SkipWithError(found.detail.c_str());
      break;
    }
  }
}
BENCHMARK(look_up_in_cache)->Unit(benchmark::kMicrosecond);

/// What an operation does when it is made; a launch does not even that. 200 kernels are loaded.
void look_up_loaded_kernel(benchmark::State& state) {
  runtime::KernelTable table;
  const std::vector<KernelSpec> specs = deployment_of(29).kernels();
  for (const KernelSpec& spec : specs) {
    KernelImage image;
    image.spec = spec;
    table.add(std::move(image));
  }
  std::size_t next = 0;
  for (auto _ : state) {
    if (table.find(specs[next]) == nullptr) state.SkipWithError("a kernel is not there");
    next = next + 1 == specs.size() ? 0 : next + 1;
  }
  state.counters["kernels"] = static_cast<double>(specs.size());
}
BENCHMARK(look_up_loaded_kernel);

void look_up_what_is_absent(benchmark::State& state) {
  const TemporaryFolder folder;
  const KernelSpec spec = kernel_of(Pattern::kResidualRmsNorm);
  const cache::Signature signature = runtime::signature_of(spec, runtime::program_of(spec), "13.0.88 CL-36424714");
  const std::string key = signature.key();
  const std::string json = signature.to_json();
  const cache::Store store = open_store(folder.path());
  for (auto _ : state) benchmark::DoNotOptimize(store.find(key, json));
}
BENCHMARK(look_up_what_is_absent)->Unit(benchmark::kMicrosecond);

/// Everything of a warm start that comes before the GPU is touched: compilers found, keys computed, cubins read and
/// verified. The argument is the number of hidden sizes; the counter says how many kernels that makes.
void start_warm(benchmark::State& state) {
  const TemporaryFolder folder;
  const Deployment deployment = deployment_of(static_cast<int>(state.range(0)));
  const std::vector<KernelSpec> kernels = deployment.kernels();
  fill_cache(folder.path(), kernels);
  BuildOptions options;
  options.cache_dir = folder.path();
  // The first start also remembers which build the compiler is.
  BuildReport report = precompile(deployment, options);
  for (auto _ : state) {
    report = precompile(deployment, options);
    if (report.hits != static_cast<int>(kernels.size()) || report.nvrtc_calls != 0) {
      state.SkipWithError("a warm start has compiled something");
      break;
    }
  }
  state.counters["kernels"] = static_cast<double>(kernels.size());
  state.counters["per_kernel"] = benchmark::Counter(
      static_cast<double>(kernels.size()), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(start_warm)->Arg(1)->Arg(8)->Arg(30)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace commfuse::bench
