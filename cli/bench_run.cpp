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

/// One shape with one number of tokens.
class Run {
 public:
  Run(gpu::Ranks& ranks, gpu::GroupOperation& operation, const BenchShape& shape, std::int64_t tokens,
      const RunOptions& options)
      : ranks_(ranks), operation_(operation), shape_(shape), tokens_(tokens), options_(options) {}

  Measurement measure(std::optional<Algorithm> algorithm, bool dependent) {
    const LaunchOptions launch = launch_options(dependent, algorithm);
    Measurement result = describe(launch);
    const std::uint64_t wanted = required_rotation_bytes(result.kernel, tokens_);
    const std::uint64_t there = ranks_.workspace(0).rotation_bytes();
    if (wanted > there) {
      result.problem = fmt::format("needs {} of workspace a call and rank; there is room for {}", bytes_text(wanted),
                                   bytes_text(there));
      return result;
    }
    prepare();
    result.checked_tokens = checked_->data().tokens;
    result.problem = check(launch);
    if (result.problem.empty()) {
      result.microseconds = time(launch);
      result.problem = ranks_.synchronise();
    }
    if (!result.problem.empty()) {
      result.failed = true;
      result.microseconds.reset();
      ranks_.group().reset();
    }
    return result;
  }

 private:
  Measurement describe(const LaunchOptions& launch) {
    AllReduce& rank = operation_.rank(0);
    const Plan plan = rank.plan(tokens_, launch);
    LaunchOptions free_choice = launch;
    free_choice.algorithm.reset();
    Measurement result;
    result.title = shape_.title();
    result.kernel = rank.kernels()[static_cast<std::size_t>(plan.kernel)];
    result.tokens = tokens_;
    result.dependent = launch.dependent_launch;
    result.planned = rank.plan(tokens_, free_choice).kernel == plan.kernel;
    result.blocks = plan.blocks;
    return result;
  }

  void prepare() {
    if (checked_) return;
    const std::int64_t checked = std::min(tokens_, options_.largest_checked);
    reference::Case data = reference::make_case(shape_.spec, checked, reference::Values::kNormal, kSeed);
    if (checked < tokens_) timed_.emplace(enlarge_case(data, tokens_));
    checked_.emplace(std::move(data));
  }

  /// What is wrong with the result of a call; empty if nothing is. Three calls in a row use each rotation buffer.
  std::string check(const LaunchOptions& launch) {
    checked_->restore();
    for (int call = 0; call < 3; ++call) {
      if (std::string problem = operation_.launch(*checked_, launch); !problem.empty()) return problem;
    }
    if (std::string problem = ranks_.synchronise(); !problem.empty()) return problem;
    return checked_->check();
  }

  double time(const LaunchOptions& launch) {
    const gpu::PlacedCase& placed = timed_ ? *timed_ : *checked_;
    std::vector<AllReduceTensors> tensors;
    for (int rank = 0; rank < ranks_.size(); ++rank) tensors.push_back(placed.tensors(rank));
    const std::vector<CUstream> streams = streams_of(ranks_);
    const Graph graph(streams, options_.calls, [&](int call, std::size_t rank) {
      LaunchOptions mine = launch;
      // The first call of a stream has no kernel before it that it could overlap.
      mine.dependent_launch = launch.dependent_launch && call > 0;
      const Status status = operation_.rank(static_cast<int>(rank)).launch(tensors[rank], tokens_, mine, streams[rank]);
      if (!status.ok()) throw Error(status.code, "cannot capture a call", status.text());
    });
    return microseconds_per_call(graph.replay(options_.replays, streams[0]), kDroppedReplays, options_.calls);
  }

  gpu::Ranks& ranks_;
  gpu::GroupOperation& operation_;
  const BenchShape& shape_;
  std::int64_t tokens_;
  const RunOptions& options_;
  std::optional<gpu::PlacedCase> checked_;  ///< made when the first call is measured
  std::optional<gpu::PlacedCase> timed_;    ///< where more tokens are timed than checked
};

}  // namespace

std::vector<Measurement> measure_shape(const KernelSet& kernels, gpu::Ranks& ranks, const BenchShape& shape,
                                       const RunOptions& options) {
  gpu::GroupOperation operation(kernels, ranks, gpu::kind_of(shape.spec));
  std::vector<Measurement> measurements;
  for (const std::int64_t tokens : options.tokens) {
    Run run(ranks, operation, shape, tokens, options);
    for (const std::optional<Algorithm>& algorithm : options.algorithms) {
      if (algorithm && !shape.has(*algorithm)) continue;
      for (const bool dependent : options.dependent) {
        if (options.progress) options.progress(fmt::format("{} {}", shape.title(), count_text(tokens, "token")));
        measurements.push_back(run.measure(algorithm, dependent));
      }
    }
  }
  return measurements;
}

HostCost measure_host_cost(const KernelSet& kernels, gpu::Ranks& ranks, const BenchShape& shape, std::int64_t tokens,
                           const BenchKernel& empty) {
  constexpr int kBatches = 40;
  constexpr int kBatch = 20;
  gpu::GroupOperation operation(kernels, ranks, gpu::kind_of(shape.spec));
  const gpu::PlacedCase placed(reference::make_case(shape.spec, tokens, reference::Values::kNormal, kSeed));
  const LaunchOptions options;
  const auto launch = [&](int rank) {
    const AllReduceTensors tensors = placed.tensors(rank);
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < kBatch; ++call) {
      const Status status = operation.rank(rank).launch(tensors, tokens, options, ranks.stream(rank));
      if (!status.ok()) throw Error(status.code, "cannot launch", status.text());
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kBatch;
  };
  const Plan plan = operation.rank(0).plan(tokens, options);
  const KernelSpec& spec = operation.rank(0).kernels()[static_cast<std::size_t>(plan.kernel)];
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
