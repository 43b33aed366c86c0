// From a cubin to a kernel that can be launched without further ado.
#pragma once

#include <cuda.h>

#include <string>
#include <string_view>
#include <utility>

#include "commfuse/spec.hpp"

namespace commfuse::runtime {

/// Owns a loaded cubin. Move-only; the destructor unloads it, which needs no current context.
class Library {
 public:
  Library() = default;
  /// Loads a cubin; the driver keeps its own copy. `name` is for the message of the Error(kDriver, kUnsupported).
  Library(std::string_view cubin, const std::string& name);
  Library(Library&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Library& operator=(Library&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Library();

  [[nodiscard]] CUlibrary get() const noexcept { return handle_; }

 private:
  CUlibrary handle_ = nullptr;
};

}  // namespace commfuse::runtime

namespace commfuse {

/// A loaded kernel, for the context that was current when it was loaded.
struct KernelImage {
  KernelSpec spec;
  std::string key;           ///< cache key; empty for a kernel that came from elsewhere
  runtime::Library library;  ///< holds `function`
  CUfunction function = nullptr;
  int registers = 0;      ///< per thread
  int shared_bytes = 0;   ///< per block, static
  int local_bytes = 0;    ///< per thread: spilled registers and indexed arrays
  int blocks_per_sm = 0;  ///< that fit at once; at least resident_blocks_per_sm(spec.threads)
};

}  // namespace commfuse

namespace commfuse::runtime {

/// Loads `cubin` into the current context and onto the device, so that no launch, not even the first, has anything left
/// to load: a load waits for the device, and the device may be waiting for a peer. Checks that the kernel takes the
/// host's parameter block and that as many blocks fit on an SM as the planner counts on. Safe while a stream is being
/// captured. Throws Error(kDriver, kUnsupported, kOutOfMemory), or Error(kMismatch) where a check fails.
[[nodiscard]] KernelImage load_kernel(const KernelSpec& spec, std::string key, std::string_view cubin);

}  // namespace commfuse::runtime
