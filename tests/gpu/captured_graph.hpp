// Calls of all ranks as a graph.
#pragma once

#include <vector>

#include "gpu/loopback.hpp"
#include "runtime/driver.hpp"

namespace commfuse::gpu {

/// What `launch` puts on the ranks' streams, as one graph: the first stream forks to the others and joins them again.
class CapturedGraph {
 public:
  template <typename Launch>
  CapturedGraph(Ranks& ranks, Launch launch) {
    CUevent fork = nullptr;
    COMMFUSE_DRIVER(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    COMMFUSE_DRIVER(cuStreamBeginCapture(ranks.stream(0), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    COMMFUSE_DRIVER(cuEventRecord(fork, ranks.stream(0)));
    for (int rank = 1; rank < ranks.size(); ++rank) COMMFUSE_DRIVER(cuStreamWaitEvent(ranks.stream(rank), fork, 0));
    launch();
    std::vector<CUevent> joins(static_cast<std::size_t>(ranks.size()), nullptr);
    for (int rank = 1; rank < ranks.size(); ++rank) {
      CUevent& join = joins[static_cast<std::size_t>(rank)];
      COMMFUSE_DRIVER(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
      COMMFUSE_DRIVER(cuEventRecord(join, ranks.stream(rank)));
      COMMFUSE_DRIVER(cuStreamWaitEvent(ranks.stream(0), join, 0));
    }
    CUgraph graph = nullptr;
    COMMFUSE_DRIVER(cuStreamEndCapture(ranks.stream(0), &graph));
    COMMFUSE_DRIVER(cuGraphInstantiate(&executable_, graph, 0));
    COMMFUSE_DRIVER(cuGraphDestroy(graph));
    for (CUevent join : joins) {
      if (join != nullptr) COMMFUSE_DRIVER(cuEventDestroy(join));
    }
    COMMFUSE_DRIVER(cuEventDestroy(fork));
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() { COMMFUSE_DRIVER_NOEXCEPT(cuGraphExecDestroy(executable_)); }

  void replay(Ranks& ranks) { COMMFUSE_DRIVER(cuGraphLaunch(executable_, ranks.stream(0))); }

 private:
  CUgraphExec executable_ = nullptr;
};

}  // namespace commfuse::gpu
