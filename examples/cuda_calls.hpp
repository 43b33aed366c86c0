// The few CUDA calls that the examples make themselves. An engine has its own (or uses the CUDA runtime); the driver is
// opened at run time so that the examples also start on machines without one.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace example {

/// The driver's function of that name. Throws where there is no driver.
template <typename Function>
Function* driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  void* symbol = library == nullptr ? nullptr : dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(std::string("the CUDA driver has no ") + name);
  return reinterpret_cast<Function*>(symbol);
}

inline void check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(call) + " failed: " + std::to_string(result));
}

// cuda.h turns some names into others (cuMemAlloc into cuMemAlloc_v2); both forms are needed as text, hence two macros.
#define EXAMPLE_TEXT(name) #name
#define EXAMPLE_CALL(name, ...) \
  ::example::check(::example::driver<decltype(name)>(EXAMPLE_TEXT(name))(__VA_ARGS__), #name)

inline bool has_gpu() noexcept {
  try {
    int count = 0;
    EXAMPLE_CALL(cuInit, 0);
    EXAMPLE_CALL(cuDeviceGetCount, &count);
    return count > 0;
  } catch (const std::exception&) {
    return false;
  }
}

/// Zeroed device memory.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t bytes) {
    EXAMPLE_CALL(cuMemAlloc, &pointer_, bytes);
    EXAMPLE_CALL(cuMemsetD8, pointer_, 0, bytes);
  }
  Memory(Memory&& other) noexcept : pointer_(std::exchange(other.pointer_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Memory() {
    if (pointer_ != 0) (void)driver<decltype(cuMemFree)>(EXAMPLE_TEXT(cuMemFree))(pointer_);
  }
  [[nodiscard]] void* pointer() const noexcept { return reinterpret_cast<void*>(pointer_); }
  void upload(const void* source, std::size_t bytes) const { EXAMPLE_CALL(cuMemcpyHtoD, pointer_, source, bytes); }
  void download(void* target, std::size_t bytes) const { EXAMPLE_CALL(cuMemcpyDtoH, target, pointer_, bytes); }

 private:
  CUdeviceptr pointer_ = 0;
};

/// The device for the rank of this number, if the ranks take devices in turn.
inline int device_of(int local_rank) {
  int count = 0;
  EXAMPLE_CALL(cuInit, 0);
  EXAMPLE_CALL(cuDeviceGetCount, &count);
  return local_rank % count;
}

/// A device's primary context, current on this thread, with its streams.
class Context {
 public:
  explicit Context(int ordinal = 0) {
    EXAMPLE_CALL(cuInit, 0);
    EXAMPLE_CALL(cuDeviceGet, &device_, ordinal);
    CUcontext context = nullptr;
    EXAMPLE_CALL(cuDevicePrimaryCtxRetain, &context, device_);
    EXAMPLE_CALL(cuCtxSetCurrent, context);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    for (CUstream stream : streams_) (void)driver<decltype(cuStreamDestroy)>(EXAMPLE_TEXT(cuStreamDestroy))(stream);
    (void)driver<decltype(cuDevicePrimaryCtxRelease)>(EXAMPLE_TEXT(cuDevicePrimaryCtxRelease))(device_);
  }
  CUstream new_stream() const {
    CUstream stream = nullptr;
    EXAMPLE_CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    streams_.push_back(stream);
    return stream;
  }

 private:
  CUdevice device_ = 0;
  mutable std::vector<CUstream> streams_;
};

/// What `step` puts on `streams`, as one graph: the first stream forks to the others and joins them again.
class Graph {
 public:
  Graph(const Context&, std::vector<CUstream> streams, const std::function<void()>& step)
      : streams_(std::move(streams)) {
    CUevent fork = new_event(CU_EVENT_DISABLE_TIMING);
    EXAMPLE_CALL(cuStreamBeginCapture, streams_[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    EXAMPLE_CALL(cuEventRecord, fork, streams_[0]);
    for (std::size_t i = 1; i < streams_.size(); ++i) EXAMPLE_CALL(cuStreamWaitEvent, streams_[i], fork, 0);
    step();
    std::vector<CUevent> joins;
    for (std::size_t i = 1; i < streams_.size(); ++i) {
      joins.push_back(new_event(CU_EVENT_DISABLE_TIMING));
      EXAMPLE_CALL(cuEventRecord, joins.back(), streams_[i]);
      EXAMPLE_CALL(cuStreamWaitEvent, streams_[0], joins.back(), 0);
    }
    CUgraph graph = nullptr;
    EXAMPLE_CALL(cuStreamEndCapture, streams_[0], &graph);
    EXAMPLE_CALL(cuGraphInstantiate, &executable_, graph, 0);
    EXAMPLE_CALL(cuGraphDestroy, graph);
    for (CUevent event : joins) EXAMPLE_CALL(cuEventDestroy, event);
    EXAMPLE_CALL(cuEventDestroy, fork);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { (void)driver<decltype(cuGraphExecDestroy)>(EXAMPLE_TEXT(cuGraphExecDestroy))(executable_); }

  /// Microseconds for `times` replays, after one that is not counted.
  [[nodiscard]] double replay(int times) const {
    CUevent begin = new_event(CU_EVENT_DEFAULT);
    CUevent end = new_event(CU_EVENT_DEFAULT);
    EXAMPLE_CALL(cuGraphLaunch, executable_, streams_[0]);
    EXAMPLE_CALL(cuEventRecord, begin, streams_[0]);
    for (int i = 0; i < times; ++i) EXAMPLE_CALL(cuGraphLaunch, executable_, streams_[0]);
    EXAMPLE_CALL(cuEventRecord, end, streams_[0]);
    EXAMPLE_CALL(cuEventSynchronize, end);
    float milliseconds = 0;
    EXAMPLE_CALL(cuEventElapsedTime, &milliseconds, begin, end);
    EXAMPLE_CALL(cuEventDestroy, begin);
    EXAMPLE_CALL(cuEventDestroy, end);
    return 1000.0 * milliseconds;
  }

 private:
  static CUevent new_event(unsigned flags) {
    CUevent event = nullptr;
    EXAMPLE_CALL(cuEventCreate, &event, flags);
    return event;
  }

  std::vector<CUstream> streams_;
  CUgraphExec executable_ = nullptr;
};

}  // namespace example
