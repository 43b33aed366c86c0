// The machine that is measured, and how fast it copies.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace commfuse::cli {

struct BenchMachine {
  std::string host;
  std::string device;
  int sm_count = 0;
  std::string driver;  ///< "580.159.03, CUDA 13.0"
  std::string nvrtc;   ///< "13.0.88 CL-36424714"
};

/// Of the first device. `nvrtc` is left empty.
[[nodiscard]] BenchMachine describe_machine();

/// The driver's release in the text of /proc/driver/nvidia/version; empty if it is not there.
[[nodiscard]] std::string driver_release(std::string_view version_text);

struct CopySpeed {
  std::uint64_t bytes = 0;  ///< copied at a time
  bool in_graph = false;
  double gigabytes_per_second = 0;  ///< 10^9 bytes, read plus written
};

/// Device-to-device copies on `stream`: 1 and 4 GiB, plainly and in a graph, or 64 MiB where the device has no room for
/// more.
[[nodiscard]] std::vector<CopySpeed> measure_copies(CUstream stream);
[[nodiscard]] double fastest(const std::vector<CopySpeed>& copies);

[[nodiscard]] std::uint64_t free_device_bytes();

}  // namespace commfuse::cli
