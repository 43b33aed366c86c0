// Kernels from the cache, and those that it does not hold from the compiler into it.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "commfuse/engine.hpp"
#include "runtime/env.hpp"

namespace commfuse::runtime {

/// One kernel's machine code.
struct BuiltKernel {
  std::string cubin;          ///< empty for KernelOrigin::kFailed, and unless `keep_cubins`
  std::exception_ptr failed;  ///< the Error, for KernelOrigin::kFailed
};

struct BuildResult {
  BuildReport report;                ///< one per spec, in their order
  std::vector<BuiltKernel> kernels;  ///< likewise
};

/// Finds or compiles each of `specs` (no two alike). One kernel's failure does not stop the others. Without a compiler,
/// what the cache holds is used, whichever NVRTC made it; throws that compiler's Error where it holds nothing at all.
[[nodiscard]] BuildResult build_kernels(const std::vector<KernelSpec>& specs, const BuildOptions& options,
                                        bool keep_cubins, const Env& environment = env());

}  // namespace commfuse::runtime
