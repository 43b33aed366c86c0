// The simulated kernels, by spec.
#pragma once

#include "commfuse/spec.hpp"

namespace commfuse::sim {

/// Called with the parameter block of the spec's operation (device/params.cuh).
using SimulatedKernel = void (*)(const void* params);

/// The kernel that simulates `spec`, whatever its architecture; null if the simulator was compiled without it.
[[nodiscard]] SimulatedKernel find_kernel(const KernelSpec& spec);

}  // namespace commfuse::sim
