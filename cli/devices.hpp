// What the machine has.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace commfuse::cli {

struct DeviceFinding {
  std::string name;
  std::string compute_capability;  ///< "9.0"
  std::string pci_bus_id;
  int sm_count = 0;
};

struct DriverFinding {
  std::string path;
  std::string version;  ///< "13.0"
  std::string problem;  ///< why there is no driver or device; else empty
  std::vector<DeviceFinding> devices;
};

/// Opens the driver and asks for its devices. Never throws; trouble is in `problem`.
[[nodiscard]] DriverFinding inspect_driver();

/// Whether this process may make files in the directory.
[[nodiscard]] bool is_writable_directory(const std::filesystem::path& folder);

}  // namespace commfuse::cli
