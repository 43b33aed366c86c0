// What a rank can ask of the stand-in for the driver (shared_memory_driver.cpp), and do because memory is the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"

namespace commfuse {

/// Objects of the driver that this process has not given back.
[[nodiscard]] int live_objects();
/// Mappings of other processes' memory.
[[nodiscard]] int foreign_mappings();
/// Device memory of this process that is in use.
[[nodiscard]] std::size_t device_bytes();
/// Calls that gave back to the driver what was not there.
[[nodiscard]] int wrong_calls();
/// See commfuse_test_limit_memory.
void limit_memory(std::size_t bytes);
/// See commfuse_test_end_context.
void end_context();
/// See commfuse_test_allocate.
[[nodiscard]] void* allocate_as(const char* source, std::size_t bytes);
/// Addresses of all ranks' rotation buffers, as this rank's kernels would be told them.
[[nodiscard]] std::vector<volatile std::uint32_t*> buffers_of(Workspace& workspace);
/// What is wrong with the memory of the group, which must be empty; empty if all ranks reach all of it. Collective.
[[nodiscard]] std::string use(Exchange& exchange, Workspace& workspace);
}  // namespace commfuse
