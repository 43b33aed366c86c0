#include "cli/devices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "commfuse/error.hpp"
#include "runtime/driver.hpp"

namespace commfuse::cli {
namespace {

int attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  COMMFUSE_DRIVER(cuDeviceGetAttribute(&value, which, device));
  return value;
}

DeviceFinding inspect_device(CUdevice device) {
  DeviceFinding finding;
  std::array<char, 128> text = {};
  COMMFUSE_DRIVER(cuDeviceGetName(text.data(), static_cast<int>(text.size()), device));
  finding.name = text.data();
  COMMFUSE_DRIVER(cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
  finding.pci_bus_id = text.data();
  finding.compute_capability = fmt::format("{}.{}", attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                                           attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  finding.sm_count = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  return finding;
}

}  // namespace

DriverFinding inspect_driver() {
  DriverFinding finding;
  try {
    const runtime::Driver& driver = runtime::driver();
    finding.path = driver.path();
    finding.version = fmt::format("{}.{}", driver.version() / 1000, driver.version() % 1000 / 10);
    int count = 0;
    COMMFUSE_DRIVER(cuDeviceGetCount(&count));
    if (count == 0) finding.problem = "the driver counts no device";
    for (int i = 0; i < count; ++i) {
      CUdevice device = 0;
      COMMFUSE_DRIVER(cuDeviceGet(&device, i));
      finding.devices.push_back(inspect_device(device));
    }
  } catch (const Error& error) {
    finding.problem = error.what();
  }
  return finding;
}

bool is_writable_directory(const std::filesystem::path& folder) { return ::access(folder.c_str(), W_OK | X_OK) == 0; }

}  // namespace commfuse::cli
