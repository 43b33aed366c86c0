// This program runs with stand-ins for the driver and the compiler: the variables that choose them are read once, so
// they are set before anything else.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

int main(int argc, char** argv) {
  for (const char* name : {"COMMFUSE_CACHE_DIR", "COMMFUSE_CACHE_READONLY", "COMMFUSE_JOBS", "COMMFUSE_SHIM_NVRTC"}) {
    unsetenv(name);
  }
  if (const char* real = std::getenv("COMMFUSE_NVRTC")) setenv("COMMFUSE_REAL_NVRTC", real, 1);
  setenv("COMMFUSE_LIBCUDA", COMMFUSE_CUDA_SHIM, 1);
  setenv("COMMFUSE_NVRTC", COMMFUSE_NVRTC_SHIM, 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
