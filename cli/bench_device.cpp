#include "cli/bench_device.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "cli/bench_graph.hpp"
#include "cli/bench_stats.hpp"
#include "cli/devices.hpp"
#include "runtime/device_memory.hpp"
#include "runtime/driver.hpp"

namespace commfuse::cli {
namespace {

constexpr int kRepetitions = 7;

/// Median of a few copies, the first two not counted.
double copy_speed(const runtime::DeviceBuffer& target, const runtime::DeviceBuffer& source, std::uint64_t bytes,
                  bool in_graph, CUstream stream) {
  const auto copy = [&](int, std::size_t) {
    COMMFUSE_DRIVER(cuMemcpyDtoDAsync(target.pointer(), source.pointer(), bytes, stream));
  };
  std::vector<float> milliseconds;
  if (in_graph) {
    milliseconds = Graph({stream}, 1, copy).replay(kRepetitions, stream);
  } else {
    const Event start;
    const Event end;
    for (int i = 0; i < kRepetitions; ++i) {
      COMMFUSE_DRIVER(cuEventRecord(start.get(), stream));
      copy(0, 0);
      COMMFUSE_DRIVER(cuEventRecord(end.get(), stream));
      COMMFUSE_DRIVER(cuStreamSynchronize(stream));
      COMMFUSE_DRIVER(cuEventElapsedTime(&milliseconds.emplace_back(), start.get(), end.get()));
    }
  }
  return 2 * static_cast<double>(bytes) / microseconds_per_call(milliseconds, 2, 1) / 1000;
}

}  // namespace

std::string driver_release(std::string_view version_text) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue ..."; the open module says "Open Kernel Module for
  // x86_64  580...": the first word that is digits and dots.
  constexpr std::string_view kDigits = "0123456789.";
  while (!version_text.empty()) {
    const std::size_t start = std::min(version_text.find_first_not_of(" \t\n"), version_text.size());
    version_text.remove_prefix(start);
    const std::string_view word = version_text.substr(0, version_text.find_first_of(" \t\n"));
    version_text.remove_prefix(word.size());
    if (word.find('.') != std::string_view::npos && word.find_first_not_of(kDigits) == std::string_view::npos) {
      return std::string(word);
    }
  }
  return {};
}

BenchMachine describe_machine() {
  BenchMachine machine;
  utsname names = {};
  if (::uname(&names) == 0) machine.host = fmt::format("{} ({})", names.nodename, names.machine);
  const DriverFinding found = inspect_driver();
  machine.driver = fmt::format("CUDA {}", found.version);
  std::ifstream file("/proc/driver/nvidia/version");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string release = driver_release(text);
  if (!release.empty()) machine.driver = fmt::format("{}, {}", release, machine.driver);
  if (!found.devices.empty()) {
    machine.device = found.devices.front().name;
    machine.sm_count = found.devices.front().sm_count;
  }
  return machine;
}

std::uint64_t free_device_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  COMMFUSE_DRIVER(cuMemGetInfo(&free, &total));
  return free;
}

std::vector<CopySpeed> measure_copies(CUstream stream) {
  constexpr std::array<std::uint64_t, 3> kSizes = {std::uint64_t{4} << 30, std::uint64_t{1} << 30,
                                                   std::uint64_t{64} << 20};
  constexpr std::uint64_t kSpare = std::uint64_t{256} << 20;
  std::vector<CopySpeed> copies;
  for (const std::uint64_t bytes : kSizes) {
    if (free_device_bytes() < 2 * bytes + kSpare) continue;
    // Below that, both ends stay in the L2 cache of a large device.
    if (bytes < kSizes[1] && !copies.empty()) break;
    runtime::DeviceBuffer source(bytes);
    runtime::DeviceBuffer target(bytes);
    source.fill(0x3f8003f8U);
    for (const bool in_graph : {false, true}) {
      copies.push_back({bytes, in_graph, copy_speed(target, source, bytes, in_graph, stream)});
    }
  }
  return copies;
}

double fastest(const std::vector<CopySpeed>& copies) {
  double speed = 0;
  for (const CopySpeed& copy : copies) speed = std::max(speed, copy.gigabytes_per_second);
  return speed;
}

}  // namespace commfuse::cli
