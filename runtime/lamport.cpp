#include "commfuse/lamport.hpp"

#include <cuda.h>

#include "runtime/driver.hpp"

namespace commfuse {
namespace {

constexpr std::uint64_t kWordBytes = 4;

constexpr std::uint32_t word_of(EmptyValue value) noexcept {
  switch (value) {
    case EmptyValue::kNegativeZero16:
      return 0x80008000U;
    case EmptyValue::kNegativeZero32:
      return 0x80000000U;
    case EmptyValue::kAllOnes:
      break;
  }
  return 0xffffffffU;
}

const runtime::Driver* driver_or_null() noexcept {
  try {
    return &runtime::driver();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

Status lamport_initialize(void* memory, std::uint64_t bytes, EmptyValue value, CUstream_st* stream) noexcept {
  if (bytes == 0) return {};
  if (memory == nullptr) return {Code::kInvalidArgument, "memory", "is missing"};
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (address % kWordBytes != 0) return {Code::kInvalidArgument, "memory", "is not aligned to 4 bytes"};
  const runtime::Driver* driver = driver_or_null();
  if (driver == nullptr) return {Code::kNotFound, "driver", "there is none, or no device"};
  const std::uint32_t word = word_of(value);
  const std::uint64_t words = bytes / kWordBytes;
  if (words > 0 && driver->cuMemsetD32Async(address, word, words, stream) != CUDA_SUCCESS) {
    return {Code::kDriver, "cuMemsetD32Async", "refused to fill the memory"};
  }
  for (std::uint64_t offset = words * kWordBytes; offset < bytes; ++offset) {
    const auto byte = static_cast<unsigned char>(word >> 8 * (offset % kWordBytes));
    if (driver->cuMemsetD8Async(address + offset, byte, 1, stream) != CUDA_SUCCESS) {
      return {Code::kDriver, "cuMemsetD8Async", "refused to fill the end of the memory"};
    }
  }
  return {};
}

Status lamport_initialize_all(void* first, void* second, void* third, std::uint64_t bytes, EmptyValue value,
                              CUstream_st* stream) noexcept {
  for (void* memory : {first, second, third}) {
    if (const Status status = lamport_initialize(memory, bytes, value, stream); !status.ok()) return status;
  }
  return {};
}

}  // namespace commfuse
