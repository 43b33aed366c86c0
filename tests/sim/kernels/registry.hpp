// The simulated kernels, by spec.
#pragma once

#include "commfuse/spec.hpp"
#include "device/params.cuh"

namespace commfuse::sim {

using AllReduceKernel = void (*)(const device::AllReduceParams&);

/// The kernel that simulates `spec`, whatever its architecture; null if the simulator was compiled without it.
[[nodiscard]] AllReduceKernel find_kernel(const KernelSpec& spec);

}  // namespace commfuse::sim
