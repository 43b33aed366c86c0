// The planner: a pure function from a shape and a device to a launch. It calls no driver, reads no clock and no free
// memory, so ranks that see the same shapes reach the same plan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "commfuse/spec.hpp"

namespace commfuse {

/// What the planner knows of the device. Equal on all ranks of a group (checked when the group is formed).
struct DeviceCaps {
  int sm_count = 132;
  int ranks_on_device = 1;  ///< ranks that share this GPU (loopback, MPS): their blocks must be resident together
};

/// Threads per block and blocks per cluster of a kernel. Depends on the row only, never on the number of tokens.
struct Geometry {
  int threads = 0;
  int cluster = 1;
  [[nodiscard]] bool operator==(const Geometry&) const = default;
};

/// The geometry that a kernel is compiled with unless a tuning table says otherwise. Results do not depend on it: the
/// order of every sum is fixed by the hidden size alone (templates/device/reduce.cuh).
[[nodiscard]] Geometry default_geometry(Pattern pattern, DataType dtype, int hidden_size) noexcept;

/// Blocks of such a kernel that one SM can hold at once, as its launch bounds promise to the compiler; the loader
/// refuses a cubin that does not keep the promise. (A register count of one build must not enter: ranks could differ.)
[[nodiscard]] int resident_blocks_per_sm(int threads) noexcept;

struct PlanRequest {
  const KernelSpec* spec = nullptr;  ///< not owned; read during the call only
  std::int64_t tokens = 0;
  int max_blocks = 0;                ///< cap asked for by the caller; 0 = none
  bool dependent_launch = false;     ///< the next kernel's blocks may be resident beside this one's
};

struct Plan {
  Algorithm algorithm = Algorithm::kOneShot;
  unsigned blocks = 0;   ///< 0: nothing to launch (no tokens)
  unsigned threads = 0;
  unsigned cluster = 1;
  std::string_view reason;  ///< static text
};

/// Never fails: a cap below one cluster is raised to one cluster (the reason says so).
[[nodiscard]] Plan plan(const PlanRequest& request, const DeviceCaps& caps) noexcept;

}  // namespace commfuse
