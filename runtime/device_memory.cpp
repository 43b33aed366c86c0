#include "runtime/device_memory.hpp"

#include <cstring>

#include "runtime/driver.hpp"

namespace commfuse::runtime {

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) COMMFUSE_DRIVER(cuMemAlloc(&pointer_, bytes));
}

DeviceBuffer::~DeviceBuffer() {
  if (pointer_ != 0) COMMFUSE_DRIVER_NOEXCEPT(cuMemFree(pointer_));
}

void DeviceBuffer::fill(std::uint32_t word) {
  if (bytes_ == 0) return;
  COMMFUSE_DRIVER(cuMemsetD32(pointer_, word, bytes_ / sizeof(word)));
  // A memset of device memory may return before it is done.
  COMMFUSE_DRIVER(cuCtxSynchronize());
}

void DeviceBuffer::upload(const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  COMMFUSE_DRIVER(cuMemcpyHtoD(pointer_, source, bytes));
  // A copy from pageable memory may return before it has arrived.
  COMMFUSE_DRIVER(cuCtxSynchronize());
}

void DeviceBuffer::download(void* target, std::size_t bytes) const {
  if (bytes > 0) COMMFUSE_DRIVER(cuMemcpyDtoH(target, pointer_, bytes));
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) {
  COMMFUSE_DRIVER(cuMemHostAlloc(&host_, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  std::memset(host_, 0, bytes);
  const CUresult result = driver().cuMemHostGetDevicePointer(&device_, host_, 0);
  if (result != CUDA_SUCCESS) {
    COMMFUSE_DRIVER_NOEXCEPT(cuMemFreeHost(host_));
    throw_driver_error(result, "cuMemHostGetDevicePointer(&device, host, 0)");
  }
}

PinnedBuffer::~PinnedBuffer() {
  if (host_ != nullptr) COMMFUSE_DRIVER_NOEXCEPT(cuMemFreeHost(host_));
}

}  // namespace commfuse::runtime
