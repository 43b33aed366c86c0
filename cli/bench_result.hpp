// What was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_device.hpp"
#include "cli/bench_floor.hpp"
#include "commfuse/spec.hpp"

namespace commfuse::cli {

/// One shape, number of tokens, algorithm and way of launching.
struct Measurement {
  std::string title;  ///< of the shape
  KernelSpec kernel;  ///< the one that was launched
  std::int64_t tokens = 0;
  bool dependent = false;
  bool planned = false;  ///< the planner takes this kernel when it is asked for no algorithm
  unsigned blocks = 0;
  std::int64_t checked_tokens = 0;     ///< of the call that was compared with the reference
  std::optional<double> microseconds;  ///< of one call; none if it was not measured
  bool failed = false;                 ///< wrong result, or the call failed
  std::string problem;                 ///< why there is no time
};

/// Host nanoseconds of putting one call on an idle stream.
struct HostCost {
  std::string kernel;
  std::int64_t tokens = 0;
  double launch_ns = 0;  ///< AllReduce::launch
  double raw_ns = 0;     ///< cuLaunchKernelEx alone, same grid, attributes and bytes of parameters
};

struct BenchResult {
  BenchMachine machine;
  std::string deployment;
  int world_size = 0;
  int calls = 0;  ///< of one rank in the graph
  int replays = 0;
  LatencyFloors latency;
  std::vector<CopySpeed> copies;
  std::vector<HostCost> host;
  std::vector<Measurement> measurements;
  std::uint64_t compile_count = 0;  ///< NVRTC programs compiled while times were taken

  [[nodiscard]] bool failed() const;
};

/// A measurement beside what it is compared with.
struct Figures {
  double latency_floor_us = 0;
  double traffic_floor_us = 0;
  std::optional<double> of_latency_floor;  ///< ratios; none without a time, or with nothing to compare
  std::optional<double> of_traffic_floor;
  std::optional<double> published_us;       ///< the same algorithm
  std::optional<double> published_best_us;  ///< the better algorithm
  std::optional<double> of_published_best;
};
[[nodiscard]] Figures figures_of(const BenchResult& result, const Measurement& measurement);

}  // namespace commfuse::cli
