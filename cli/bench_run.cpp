#include "cli/bench_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/bench_graph.hpp"
#include "cli/bench_stats.hpp"
#include "cli/units.hpp"
#include "device/params.cuh"
#include "runtime/driver.hpp"

namespace commfuse::cli {
namespace {

constexpr std::size_t kDroppedReplays = 2;
constexpr std::uint64_t kSeed = 2;  // an even one: with every optional tensor (reference/case.hpp)

std::vector<CUstream> streams_of(const gpu::Ranks& ranks) {
  std::vector<CUstream> streams;
  for (int rank = 0; rank < ranks.size(); ++rank) streams.push_back(ranks.stream(rank));
  return streams;
}

LaunchOptions launch_options(bool dependent, std::optional<Algorithm> algorithm) {
  LaunchOptions options;
  options.dependent_launch = options.trigger_early = dependent;
  options.algorithm = algorithm;
  return options;
}

/// What is wrong with the result of a call; empty if nothing is. Three calls in a row use each rotation buffer.
std::string check_call(gpu::Ranks& ranks, gpu::GroupOperation& operation, gpu::PlacedCase& placed,
                       const LaunchOptions& launch) {
  placed.restore();
  for (int call = 0; call < 3; ++call) {
    if (std::string problem = operation.launch(placed, launch); !problem.empty()) return problem;
  }
  if (std::string problem = ranks.synchronise(); !problem.empty()) return problem;
  return placed.check();
}

double time_call(gpu::Ranks& ranks, gpu::GroupOperation& operation, const gpu::PlacedCase& placed,
                 const LaunchOptions& launch, const RunOptions& options) {
  std::vector<gpu::GroupOperation::Launch> launches;
  for (int rank = 0; rank < ranks.size(); ++rank) launches.push_back(operation.prepare(rank, placed));
  const std::vector<CUstream> streams = streams_of(ranks);
  const Graph graph(streams, options.calls, [&](int call, std::size_t rank) {
    LaunchOptions mine = launch;
    // The first call of a stream has no kernel before it that it could overlap.
    mine.dependent_launch = launch.dependent_launch && call > 0;
    const Status status = launches[rank](mine, streams[rank]);
    if (!status.ok()) throw Error(status.code, "cannot capture a call", status.text());
  });
  return microseconds_per_call(graph.replay(options.replays, streams[0]), kDroppedReplays, options.calls);
}

}  // namespace

BenchData::BenchData(const KernelSpec& spec, std::int64_t tokens, std::int64_t largest_checked) : tokens_(tokens) {
  const std::int64_t checked = std::min(tokens, largest_checked);
  reference::Case data = reference::make_case(spec, checked, reference::Values::kNormal, kSeed);
  if (checked < tokens) timed_.emplace(enlarge_case(data, tokens));
  checked_.emplace(std::move(data));
}

Measurement describe_call(gpu::GroupOperation& operation, const BenchShape& shape, std::int64_t tokens,
                          const LaunchOptions& launch) {
  const FusedOperation& rank = operation.any(0);
  const bool registered = launch.algorithm == Algorithm::kDirect;
  const Plan plan = rank.plan(tokens, launch, registered);
  LaunchOptions free_choice = launch;
  free_choice.algorithm.reset();
  Measurement measurement;
  measurement.title = shape.title();
  measurement.kernel = rank.kernels()[static_cast<std::size_t>(plan.kernel)];
  measurement.tokens = tokens;
  measurement.dependent = launch.dependent_launch;
  measurement.planned = rank.plan(tokens, free_choice, registered).kernel == plan.kernel;
  measurement.blocks = plan.blocks;
  return measurement;
}

void measure_call(gpu::Ranks& ranks, gpu::GroupOperation& operation, BenchData& data, const LaunchOptions& launch,
                  const RunOptions& options, Measurement& measurement) {
  measurement.checked_tokens = data.checked().data().tokens;
  const bool direct = launch.algorithm == Algorithm::kDirect;
  if (direct) data.checked().register_with(ranks.group());
  measurement.problem = check_call(ranks, operation, data.checked(), launch);
  if (measurement.problem.empty()) {
    if (direct && &data.timed() != &data.checked()) data.timed().register_with(ranks.group());
    measurement.microseconds = time_call(ranks, operation, data.timed(), launch, options);
    measurement.problem = ranks.synchronise();
  }
  data.checked().unregister(ranks.group());
  data.timed().unregister(ranks.group());
  if (measurement.problem.empty()) return;
  measurement.failed = true;
  measurement.microseconds.reset();
  ranks.group().reset();
}

std::vector<Measurement> measure_shape(const KernelSet& kernels, gpu::Ranks& ranks, const BenchShape& shape,
                                       const RunOptions& options) {
  gpu::GroupOperation operation(kernels, ranks, shape.spec);
  const std::uint64_t there = ranks.workspace(0).rotation_bytes();
  std::vector<Measurement> measurements;
  for (const std::int64_t tokens : options.tokens) {
    std::optional<BenchData> data;  // made when the first call is measured
    for (const std::optional<Algorithm>& algorithm : options.algorithms) {
      if (algorithm && !shape.has(*algorithm)) continue;
      for (const bool dependent : options.dependent) {
        if (options.progress) options.progress(fmt::format("{} {}", shape.title(), count_text(tokens, "token")));
        const LaunchOptions launch = launch_options(dependent, algorithm);
        Measurement& measurement = measurements.emplace_back(describe_call(operation, shape, tokens, launch));
        const std::uint64_t wanted = required_rotation_bytes(measurement.kernel, tokens);
        if (wanted > there) {
          measurement.problem = fmt::format("needs {} of workspace a call and rank; there is room for {}",
                                            bytes_text(wanted), bytes_text(there));
          continue;
        }
        if (!data) data.emplace(shape.spec, tokens, options.largest_checked);
        measure_call(ranks, operation, *data, launch, options, measurement);
      }
    }
  }
  return measurements;
}

HostCost measure_host_cost(const KernelSet& kernels, gpu::Ranks& ranks, const BenchShape& shape, std::int64_t tokens,
                           const BenchKernel& empty) {
  constexpr int kBatches = 40;
  constexpr int kBatch = 20;
  gpu::GroupOperation operation(kernels, ranks, shape.spec);
  const gpu::PlacedCase placed(reference::make_case(shape.spec, tokens, reference::Values::kNormal, kSeed));
  const LaunchOptions options;
  const auto launch = [&](int rank) {
    const gpu::GroupOperation::Launch prepared = operation.prepare(rank, placed);
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kBatch; ++call) {
      const Status status = prepared(options, ranks.stream(rank));
      if (!status.ok()) throw Error(status.code, "cannot launch", status.text());
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kBatch;
  };
  const Plan plan = operation.any(0).plan(tokens, options);
  const KernelSpec& spec = operation.any(0).kernels()[static_cast<std::size_t>(plan.kernel)];
  const RawLaunch raw{.blocks = plan.blocks,
                      .threads = static_cast<unsigned>(spec.threads),
                      .cluster = static_cast<unsigned>(spec.cluster)};
  device::AllReduceParams params{};
  const auto launch_raw = [&] {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kBatch; ++call) empty.launch(raw, &params, ranks.stream(0));
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kBatch;
  };
  std::vector<double> prepared;
  std::vector<double> bare;
  for (int batch = 0; batch < kBatches; ++batch) {
    prepared.push_back(launch(0));
    for (int rank = 1; rank < ranks.size(); ++rank) (void)launch(rank);
    if (const std::string problem = ranks.synchronise(); !problem.empty()) {
      throw Error(Code::kTimeout, "cannot measure the cost of a launch", problem);
    }
    bare.push_back(launch_raw());
    COMMFUSE_DRIVER(cuStreamSynchronize(ranks.stream(0)));
  }
  return {spec.name(), tokens, median(std::move(prepared)), median(std::move(bare))};
}

}  // namespace commfuse::cli
