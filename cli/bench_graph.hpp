// Timing on the device: calls of all ranks captured into one graph, replayed between events.
#pragma once

#include <cuda.h>

#include <functional>
#include <utility>
#include <vector>

namespace commfuse::cli {

class Event {
 public:
  Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event();
  [[nodiscard]] CUevent get() const noexcept { return event_; }

 private:
  CUevent event_ = nullptr;
};

/// What is captured into a graph: put the call number `call` (from 0) of stream number `rank` on it.
using CapturedCall = std::function<void(int call, std::size_t rank)>;

/// An executable graph: streams[0] forks to all, each makes `calls` calls, all join streams[0].
class Graph {
 public:
  Graph(const std::vector<CUstream>& streams, int calls, const CapturedCall& launch);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  /// Milliseconds of each of `replays` replays on `stream`. They are put there without waiting in between, so that the
  /// device never waits for the host.
  [[nodiscard]] std::vector<float> replay(int replays, CUstream stream) const;

 private:
  CUgraphExec executable_ = nullptr;
};

}  // namespace commfuse::cli
