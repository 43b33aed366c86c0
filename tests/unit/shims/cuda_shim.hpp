// What a test tells the stand-in for libcuda (cuda_shim.cpp), and what it hears from it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commfuse::test {

struct CudaShim {
  int driver_version = 13000;
  int init_result = 0;  ///< a CUresult
  int device_count = 1;
  int compute_major = 9;
  int compute_minor = 0;
  bool context_current = true;
  int load_result = 0;          ///< of cuLibraryLoadData
  std::size_t param_bytes = 0;  ///< of the first parameter
  std::size_t param_offset = 0;
  int blocks_per_sm = 64;
  int clusters = 16;
  int libraries = 0;     ///< loaded and not unloaded
  int capture_mode = 0;  ///< of the thread; 2 = relaxed
  bool always_relaxed_when_loading = true;
  int memset_result = 0;      ///< a CUresult
  bool memset_writes = true;  ///< to the host memory at that address
  std::uint64_t memset_bytes = 0;
  std::uint64_t memset_end = 0;  ///< behind the last byte of the last one
  char calls[4096] = {};         ///< names of the calls since the last reset, separated by spaces
};

}  // namespace commfuse::test

/// Exported by the shim.
extern "C" commfuse::test::CudaShim* commfuse_cuda_shim();
