// The kernels that the simulator is compiled with: a fixed list, because a template must be compiled to be simulated.
#pragma once

#include <vector>

#include "commfuse/spec.hpp"

namespace commfuse::sim {

/// Every kernel of the list, architecture "sm_90a", without repetition.
[[nodiscard]] std::vector<KernelSpec> simulated_kernels();

}  // namespace commfuse::sim
