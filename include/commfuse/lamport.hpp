// Filling buffers with the value that means "nothing has arrived yet", for protocols whose data are their own flags.
#pragma once

#include <cstdint>

#include "commfuse/error.hpp"

// The driver's stream handle, declared here so that cuda.h is not needed.
struct CUstream_st;

namespace commfuse {

/// The value, as it lies in memory from the start of the buffer.
enum class EmptyValue : int {
  kAllOnes = 0,         ///< every bit set: what the kernels of commfuse wait to see overwritten, whatever the type
  kNegativeZero16 = 1,  ///< -0.0 of fp16 and bf16 elements: what kernels of the TensorRT-LLM lineage use
  kNegativeZero32 = 2,  ///< -0.0 of fp32 elements
};

/// Fills `bytes` bytes of device memory, from `memory` on (4-byte aligned), on the stream. Any number of bytes: none,
/// not a multiple of an element (the last element is then cut off), beyond 4 GiB; nothing behind them is touched.
/// Returns at once; peers may write into the memory only after the stream has got there. Can be captured.
///
/// kInvalidArgument for a pointer that is null or not aligned, kNotFound without a driver, kDriver where it refuses.
Status lamport_initialize(void* memory, std::uint64_t bytes, EmptyValue value, CUstream_st* stream) noexcept;

/// The same for the three buffers of a rotation, `bytes` bytes each.
Status lamport_initialize_all(void* first, void* second, void* third, std::uint64_t bytes, EmptyValue value,
                              CUstream_st* stream) noexcept;

}  // namespace commfuse
