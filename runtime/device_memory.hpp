// Owned device and pinned host memory.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace commfuse::runtime {

/// Device memory of the context that was current when it was allocated. Move-only; freed by the destructor, which needs
/// that context to exist still (a failure is logged, not thrown).
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws Error(kOutOfMemory, kDriver). 0 bytes: owns nothing.
  explicit DeviceBuffer(std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : pointer_(std::exchange(other.pointer_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  [[nodiscard]] CUdeviceptr pointer() const noexcept { return pointer_; }
  template <typename T = void>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(pointer_);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Gives up ownership: the memory stays until the context goes.
  void abandon() noexcept { pointer_ = 0; }

  /// Fills with a repeated 32-bit word / copies; return when done. `bytes` from the start of the buffer.
  void fill(std::uint32_t word);
  void upload(const void* source, std::size_t bytes);
  void download(void* target, std::size_t bytes) const;

 private:
  CUdeviceptr pointer_ = 0;
  std::size_t bytes_ = 0;
};

/// Page-locked host memory that the device reads and writes through the same address, zeroed. Move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : host_(std::exchange(other.host_, nullptr)), device_(std::exchange(other.device_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~PinnedBuffer();

  /// Gives up ownership: for a context that has died, and the memory with it.
  void abandon() noexcept { host_ = nullptr; }
  [[nodiscard]] void* host() const noexcept { return host_; }
  [[nodiscard]] CUdeviceptr device() const noexcept { return device_; }

 private:
  void* host_ = nullptr;
  CUdeviceptr device_ = 0;
};

}  // namespace commfuse::runtime
