// The benchmark's own kernels: how long any exchange between the ranks takes at least.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include "runtime/compiler.hpp"
#include "runtime/device_memory.hpp"
#include "runtime/loader.hpp"

namespace commfuse::cli {

/// One block of 32 threads that tells every other rank the number of the call and waits until it has been told the
/// same. A wait ends after about two seconds whatever happens.
[[nodiscard]] runtime::Program flag_program(const std::string& arch);
/// Does nothing, with as many bytes of parameters as an all-reduce kernel has.
[[nodiscard]] runtime::Program empty_program(const std::string& arch);

/// Shape of a raw launch.
struct RawLaunch {
  unsigned blocks = 1;
  unsigned threads = 32;
  unsigned cluster = 1;
  bool dependent_launch = false;
};

/// A loaded kernel of the benchmark.
class BenchKernel {
 public:
  BenchKernel(const runtime::Nvrtc& nvrtc, const runtime::Program& program);
  /// Throws Error(kDriver). `parameters` is the kernel's only argument.
  void launch(const RawLaunch& shape, void* parameters, CUstream stream) const;

 private:
  runtime::Library library_;
  CUfunction function_ = nullptr;
};

/// Microseconds of a call that does nothing but what is said, in the same graph as the calls that are measured.
struct LatencyFloors {
  double flag_us = 0;            ///< exchange one flag with every rank
  double flag_dependent_us = 0;  ///< the same with programmatic dependent launch
  double empty_us = 0;           ///< nothing at all
  double empty_dependent_us = 0;

  [[nodiscard]] double of(bool dependent) const { return dependent ? flag_dependent_us : flag_us; }
};

/// Throws Error(kTimeout) if some flag never came.
[[nodiscard]] LatencyFloors measure_latency_floors(const BenchKernel& flag, const BenchKernel& empty,
                                                   const std::vector<CUstream>& streams, int calls, int replays);

}  // namespace commfuse::cli
