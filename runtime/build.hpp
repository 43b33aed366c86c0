// Kernels from the cache, and those that it does not hold from the compiler into it.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "cache/obtain.hpp"
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

/// What build_kernels would look for, without looking further: keys and signatures of `specs`, in their order. Without
/// a compiler they are those of the NVRTC whose kernel the cache holds, else of the newest one that made any; throws
/// that compiler's Error where no NVRTC made any.
[[nodiscard]] std::vector<cache::Wanted> wanted_kernels(const std::vector<KernelSpec>& specs,
                                                        const std::filesystem::path& cache_dir,
                                                        const Env& environment = env());

}  // namespace commfuse::runtime
