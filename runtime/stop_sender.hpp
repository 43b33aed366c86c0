// The host's way to tell peers that this rank has stopped, while no kernel of this rank runs that could do it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

#include "runtime/device_memory.hpp"

namespace commfuse::runtime {

/// Writes a word into other ranks' memory with a copy on a stream of its own: a copy engine needs no place on an SM, so
/// it gets through while kernels fill the device and wait. Made and destroyed with the workspace's context current.
class StopSender {
 public:
  /// `word` is what send() writes. Throws Error(kDriver, kOutOfMemory).
  explicit StopSender(std::uint32_t word);
  StopSender(const StopSender&) = delete;
  StopSender& operator=(const StopSender&) = delete;
  ~StopSender();

  /// Starts writing to each of `addresses` (0: skipped) and returns at once. Any thread, with any context current. Best
  /// effort: what the driver refuses is logged.
  void send(std::span<const std::uint64_t> addresses) noexcept;
  /// The context has died, and what belonged to it: nothing is to be given back.
  void abandon() noexcept;

 private:
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  PinnedBuffer word_;
};

}  // namespace commfuse::runtime
