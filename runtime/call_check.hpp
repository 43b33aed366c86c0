// Announcing calls to the other ranks (checking mode, templates/call_check.cuh).
#pragma once

#include <cuda.h>

#include "commfuse/engine.hpp"
#include "commfuse/error.hpp"
#include "runtime/call_header.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse::runtime {

/// The kernel that announces calls of this workspace, or null where it is not in checking mode. Throws
/// Error(kNotWarmed) where it is and `kernels` lacks the kernel.
[[nodiscard]] const KernelImage* call_check_of(const KernelSet& kernels, const WorkspaceState& workspace);

/// Puts the announcement on the stream. To be called right before the call itself is launched on the same stream; for
/// a call without tokens too, which is then not launched.
Status announce_call(const KernelImage& check, const WorkspaceState& workspace, const CallHeader& header,
                     CUstream stream) noexcept;

}  // namespace commfuse::runtime
