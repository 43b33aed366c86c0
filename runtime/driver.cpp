#include "runtime/driver.hpp"

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "commfuse/error.hpp"
#include "runtime/log.hpp"

namespace commfuse::runtime {
namespace {

enum Need { kRequired, kOptional };

constexpr const char* kNoDriver =
    "Install the NVIDIA driver or run the container with GPU access (precompile with architectures named needs "
    "neither)";

std::atomic<const Driver*> g_driver{nullptr};

/// The library, opened at the first of the places that has one.
DynamicLibrary open_library(const Env& env) {
  std::vector<std::string> places;
  if (!env.libcuda.empty()) {
    places.push_back(env.libcuda);
  } else {
    places = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
  }
  std::string cause;
  for (const std::string& place : places) {
    std::string words;
    if (auto library = DynamicLibrary::open(place, &words)) return std::move(*library);
    cause += (cause.empty() ? "" : "; ") + words;
  }
  throw Error(Code::kNotFound, "cannot open the CUDA driver library", cause,
              env.libcuda.empty() ? kNoDriver : "Correct or unset COMMFUSE_LIBCUDA");
}

/// What the driver says about an error; its number where it does not know it.
std::string describe(const Driver* driver, CUresult result) {
  const char* name = nullptr;
  const char* meaning = nullptr;
  if (driver == nullptr || driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return fmt::format("CUDA error {}", static_cast<int>(result));
  }
  if (driver->cuGetErrorString(result, &meaning) != CUDA_SUCCESS || meaning == nullptr) return name;
  return fmt::format("{} ({})", name, meaning);
}

Code code_of(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Code::kOutOfMemory;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_STUB_LIBRARY:
      return Code::kNotFound;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return Code::kUnsupported;
    default:
      return Code::kDriver;
  }
}

}  // namespace

Driver Driver::open(const Env& env) {
  Driver driver(open_library(env));
  driver.path_ = driver.library_.path();

  // The driver's own look-up knows every form of every call; exported symbols stand in where it is missing.
  decltype(&::cuGetProcAddress) get_proc = nullptr;
  get_proc = reinterpret_cast<decltype(get_proc)>(driver.library_.symbol("cuGetProcAddress_v2"));
  const auto look_up = [&](auto& function, const char* name, const char* exported, int version, Need need) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    if (get_proc == nullptr || get_proc(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) != CUDA_SUCCESS) {
      address = nullptr;
    }
    if (address == nullptr) address = driver.library_.symbol(exported);
    if (address == nullptr) address = driver.library_.symbol(name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    if (address != nullptr || need == kOptional) return;
    throw Error(Code::kNotFound, fmt::format("cannot use the CUDA driver '{}'", driver.path_),
                fmt::format("it has no function {} ({})", name,
                            driver.version_ == 0
                                ? "of unknown version"
                                : fmt::format("version {}.{}", driver.version_ / 1000, driver.version_ % 1000 / 10)),
                "Install a driver for CUDA 12.0 or newer");
  };
  look_up(driver.cuDriverGetVersion, "cuDriverGetVersion", "cuDriverGetVersion", 2020, kRequired);
  if (driver.cuDriverGetVersion(&driver.version_) != CUDA_SUCCESS) driver.version_ = 0;
  if (driver.version_ < kMinDriverVersion) {
    throw Error(
        Code::kUnsupported, fmt::format("the CUDA driver '{}' is too old", driver.path_),
        fmt::format("it is for CUDA {}.{}, needed is 12.0", driver.version_ / 1000, driver.version_ % 1000 / 10),
        "Install a newer driver");
  }
#define COMMFUSE_STRING(text) COMMFUSE_STRING_OF(text)
#define COMMFUSE_STRING_OF(text) #text
#define COMMFUSE_LOOK_UP(name, version, need) look_up(driver.name, #name, COMMFUSE_STRING(name), version, need);
  COMMFUSE_DRIVER_FUNCTIONS(COMMFUSE_LOOK_UP)
#undef COMMFUSE_LOOK_UP
#undef COMMFUSE_STRING_OF
#undef COMMFUSE_STRING
  return driver;
}

const Driver& driver() {
  if (const Driver* open = driver_if_open()) return *open;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  if (const Driver* open = driver_if_open()) return *open;
  auto opened = std::make_unique<Driver>(Driver::open(env()));
  if (const CUresult result = opened->cuInit(0); result != CUDA_SUCCESS) {
    const bool absent = code_of(result) != Code::kDriver;
    throw Error(absent ? Code::kNotFound : Code::kDriver,
                fmt::format("cannot initialise the CUDA driver '{}'", opened->path()), describe(opened.get(), result),
                kNoDriver);
  }
  // Never destroyed: objects with static lifetime may still free device memory while the process ends.
  const Driver* kept = opened.release();
  g_driver.store(kept, std::memory_order_release);
  return *kept;
}

const Driver* driver_if_open() noexcept { return g_driver.load(std::memory_order_acquire); }

void throw_driver_error(CUresult result, const char* call) {
  throw Error(code_of(result), fmt::format("the CUDA driver call {} failed", call), describe(driver_if_open(), result));
}

std::string describe_driver_error(CUresult result) { return describe(driver_if_open(), result); }

void log_driver_error(CUresult result, const char* call) noexcept {
  // The driver has already shut down at the end of the process; everything is freed anyway.
  if (result == CUDA_ERROR_DEINITIALIZED || !log_enabled()) return;
  try {
    log(LogLevel::kWarning,
        fmt::format("the CUDA driver call {} failed: {}", call, describe(driver_if_open(), result)));
  } catch (...) {  // out of memory: the message is lost, the destructor goes on
  }
}

}  // namespace commfuse::runtime
