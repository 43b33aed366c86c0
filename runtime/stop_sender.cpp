#include "runtime/stop_sender.hpp"

#include <cstring>

#include "runtime/driver.hpp"

namespace commfuse::runtime {

StopSender::StopSender(std::uint32_t word) : word_(sizeof(word)) {
  std::memcpy(word_.host(), &word, sizeof(word));
  COMMFUSE_DRIVER(cuCtxGetCurrent(&context_));
  COMMFUSE_DRIVER(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
}

StopSender::~StopSender() {
  if (stream_ == nullptr) return;
  COMMFUSE_DRIVER_NOEXCEPT(cuStreamSynchronize(stream_));
  COMMFUSE_DRIVER_NOEXCEPT(cuStreamDestroy(stream_));
}

void StopSender::abandon() noexcept {
  stream_ = nullptr;
  word_.abandon();
}

void StopSender::send(std::span<const std::uint64_t> addresses) noexcept {
  const Driver* driver = driver_if_open();
  if (stream_ == nullptr || driver == nullptr || driver->cuCtxPushCurrent(context_) != CUDA_SUCCESS) return;
  for (const std::uint64_t address : addresses) {
    if (address == 0) continue;
    COMMFUSE_DRIVER_NOEXCEPT(cuMemcpyHtoDAsync(address, word_.host(), sizeof(std::uint32_t), stream_));
  }
  CUcontext popped = nullptr;
  COMMFUSE_DRIVER_NOEXCEPT(cuCtxPopCurrent(&popped));
}

}  // namespace commfuse::runtime
