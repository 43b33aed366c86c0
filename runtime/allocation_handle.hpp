// A hold on memory of cuMemCreate.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <utility>

#include "runtime/driver.hpp"

namespace commfuse::runtime {

/// The memory lives as long as a handle or a mapping of it does. Move-only.
class AllocationHandle {
 public:
  AllocationHandle() = default;
  AllocationHandle(AllocationHandle&& other) noexcept
      : handle_(other.handle_), is_held_(std::exchange(other.is_held_, false)) {}
  AllocationHandle& operator=(AllocationHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(is_held_, other.is_held_);
    return *this;
  }
  ~AllocationHandle() {
    if (is_held_) COMMFUSE_DRIVER_NOEXCEPT(cuMemRelease(handle_));
  }

  void create(const CUmemAllocationProp& properties, std::size_t bytes) {
    COMMFUSE_DRIVER(cuMemCreate(&handle_, bytes, &properties, 0));
    is_held_ = true;
  }
  void import(void* shareable, CUmemAllocationHandleType type) {
    COMMFUSE_DRIVER(cuMemImportFromShareableHandle(&handle_, shareable, type));
    is_held_ = true;
  }
  /// Holds the memory that is mapped at `address`. False if that is not memory of cuMemCreate.
  bool retain(CUdeviceptr address) {
    is_held_ = driver().cuMemRetainAllocationHandle(&handle_, reinterpret_cast<void*>(address)) == CUDA_SUCCESS;
    return is_held_;
  }
  [[nodiscard]] CUmemGenericAllocationHandle get() const noexcept { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  bool is_held_ = false;
};

}  // namespace commfuse::runtime
