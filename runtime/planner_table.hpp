// Which planner table a workspace goes by.
#pragma once

#include <cuda.h>

#include "commfuse/planner.hpp"

namespace commfuse::runtime {

/// The table, if its times were taken on such a device with as many ranks on it; else an empty one. Throws
/// Error(kDriver).
[[nodiscard]] PlannerTable table_for_device(const PlannerTable& table, CUdevice device, const DeviceCaps& caps);

}  // namespace commfuse::runtime
