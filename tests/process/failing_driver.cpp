// Stands before a driver and makes chosen calls of this process fail. COMMFUSE_LIBCUDA names this library, and then:
//
//   COMMFUSE_TEST_DRIVER  the driver behind it; libcuda.so.1 if not set
//   COMMFUSE_TEST_FAIL    calls with spaces between, each with the error that it gives: "cuIpcOpenMemHandle:217"; 101
//                         (invalid device) where none is said
//   COMMFUSE_TEST_KILL    a call in which this process dies
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

namespace {

template <int error>
CUresult refuse() {
  return static_cast<CUresult>(error);
}
CUresult die() {
  ::raise(SIGKILL);
  return CUDA_SUCCESS;
}

void* refusal(int error) {
  static const std::map<int, void*> kRefusals = {
      {1, reinterpret_cast<void*>(&refuse<1>)},     {2, reinterpret_cast<void*>(&refuse<2>)},
      {101, reinterpret_cast<void*>(&refuse<101>)}, {217, reinterpret_cast<void*>(&refuse<217>)},
      {401, reinterpret_cast<void*>(&refuse<401>)}, {801, reinterpret_cast<void*>(&refuse<801>)}};
  return kRefusals.at(error);
}

/// What stands in for a call; null if nothing does.
void* stand_in(const std::string& call) {
  const char* killing = std::getenv("COMMFUSE_TEST_KILL");
  if (killing != nullptr && call == killing) return reinterpret_cast<void*>(&die);
  const char* failing = std::getenv("COMMFUSE_TEST_FAIL");
  std::istringstream words(failing != nullptr ? failing : "");
  for (std::string word; words >> word;) {
    const auto colon = word.find(':');
    if (word.substr(0, colon) == call) {
      return refusal(colon == std::string::npos ? 101 : std::atoi(word.c_str() + colon + 1));
    }
  }
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* symbol, void** address,
                                                                               int version, cuuint64_t flags,
                                                                               CUdriverProcAddressQueryResult* found) {
  static const auto look_up = [] {
    const char* path = std::getenv("COMMFUSE_TEST_DRIVER");
    void* driver = ::dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver == nullptr ? nullptr
                             : reinterpret_cast<decltype(&cuGetProcAddress_v2)>(::dlsym(driver, "cuGetProcAddress_v2"));
  }();
  if (look_up == nullptr) return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  if (void* instead = stand_in(symbol)) {
    *address = instead;
    *found = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
  }
  return look_up(symbol, address, version, flags, found);
}
