// The benchmark's own kernels, as far as a machine without a GPU can tell.
#include "cli/bench_floor.hpp"

#include <gtest/gtest.h>

#include "device/params.cuh"
#include "runtime/toolchain.hpp"

namespace commfuse::cli {
namespace {

const runtime::Nvrtc& nvrtc_for(const std::string& arch) {
  static runtime::Toolchains& toolchains = *new runtime::Toolchains(env(), runtime::ToolchainMemo({}));
  return toolchains.for_arch(arch).nvrtc();
}

TEST(BenchFloor, FlagKernelCompilesForEveryGenerationAndStaysSmall) {
  for (const std::string arch : {"sm_80", "sm_90a", "sm_100a"}) {
    const runtime::CompiledKernel kernel = compile(nvrtc_for(arch), flag_program(arch));
    // Sixteen flag pointers, the state, rank and world size.
    EXPECT_EQ(kernel.facts.param_bytes, 144u);
    EXPECT_EQ(kernel.facts.stack_bytes, 0u) << "a floor must not touch local memory";
    EXPECT_EQ(kernel.log, "");
  }
}

TEST(BenchFloor, EmptyKernelTakesTheParametersOfAnAllReduce) {
  const runtime::CompiledKernel kernel = compile(nvrtc_for("sm_90a"), empty_program("sm_90a"));
  EXPECT_EQ(kernel.facts.param_bytes, sizeof(device::AllReduceParams));
  EXPECT_EQ(kernel.log, "");
}

}  // namespace
}  // namespace commfuse::cli
