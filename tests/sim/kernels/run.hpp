// Runs calls of simulated kernels on all ranks and compares everything they wrote with the reference.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"
#include "device/params.cuh"
#include "reference/case.hpp"
#include "sim/kernels/registry.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {

/// One call of the group: which kernel, with how many tokens, on what data.
struct SimulatedCall {
  KernelSpec spec;
  std::int64_t tokens = 1;
  reference::Values values = reference::Values::kNormal;
  std::vector<std::int64_t> rows_of_ranks = {};  ///< instead of `tokens`, where the operation scatters or gathers
  unsigned teams = 0;                            ///< blocks or clusters; 0: one per piece of work
  bool dependent = false;                        ///< programmatic dependent launch, triggered early
  bool in_place = false;                         ///< outputs in the memory of the inputs, where shapes agree
  std::uint32_t direct = 0;                      ///< direct kernels: device::bit_of() the tensors that are registered
  /// As an engine does it: all calls use the same input and output tensors; a kernel before each call fills the input
  /// and one after it takes the outputs away. Calls of one run are all so or none.
  bool reuses_tensors = false;
  SimulatedKernel kernel = nullptr;  ///< instead of the registry's, for planted faults
};

/// Makes the calls one after the other on one workspace and returns what differs from the reference: an empty text if
/// nothing does. Throws sim::Failure for what the simulator itself finds.
[[nodiscard]] std::string run_calls(const std::vector<SimulatedCall>& calls, const Options& options);

/// The same with one rank that never calls, kernels that wait at most `timeout_ns`, and no look at the results: what
/// the mailbox of each rank says afterwards.
[[nodiscard]] std::vector<device::HostMailbox> run_without_rank(const std::vector<SimulatedCall>& calls,
                                                                std::uint32_t absent, std::uint64_t timeout_ns,
                                                                const Options& options);

}  // namespace commfuse::sim
