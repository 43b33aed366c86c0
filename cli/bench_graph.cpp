#include "cli/bench_graph.hpp"

#include "runtime/driver.hpp"

namespace commfuse::cli {
namespace {

/// Owns the captured graph; a capture that an exception cuts short is ended, so that the stream can be used again.
class Capture {
 public:
  explicit Capture(CUstream stream) : stream_(stream) {
    COMMFUSE_DRIVER(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    // The failure that is already under way is the one to tell.
    if (capturing_) (void)runtime::driver().cuStreamEndCapture(stream_, &graph_);
    if (graph_ != nullptr) COMMFUSE_DRIVER_NOEXCEPT(cuGraphDestroy(graph_));
  }

  [[nodiscard]] CUgraph end() {
    capturing_ = false;
    COMMFUSE_DRIVER(cuStreamEndCapture(stream_, &graph_));
    return graph_;
  }

 private:
  CUstream stream_;
  bool capturing_ = true;
  CUgraph graph_ = nullptr;
};

}  // namespace

Event::Event() { COMMFUSE_DRIVER(cuEventCreate(&event_, CU_EVENT_DEFAULT)); }
Event::~Event() {
  if (event_ != nullptr) COMMFUSE_DRIVER_NOEXCEPT(cuEventDestroy(event_));
}

Graph::Graph(const std::vector<CUstream>& streams, int calls, const CapturedCall& launch) {
  const Event fork;
  const std::vector<Event> joins(streams.size());
  Capture capture(streams[0]);
  COMMFUSE_DRIVER(cuEventRecord(fork.get(), streams[0]));
  for (std::size_t rank = 1; rank < streams.size(); ++rank) {
    COMMFUSE_DRIVER(cuStreamWaitEvent(streams[rank], fork.get(), 0));
  }
  for (int call = 0; call < calls; ++call) {
    for (std::size_t rank = 0; rank < streams.size(); ++rank) launch(call, rank);
  }
  for (std::size_t rank = 1; rank < streams.size(); ++rank) {
    COMMFUSE_DRIVER(cuEventRecord(joins[rank].get(), streams[rank]));
    COMMFUSE_DRIVER(cuStreamWaitEvent(streams[0], joins[rank].get(), 0));
  }
  COMMFUSE_DRIVER(cuGraphInstantiate(&executable_, capture.end(), 0));
}

Graph::~Graph() {
  if (executable_ != nullptr) COMMFUSE_DRIVER_NOEXCEPT(cuGraphExecDestroy(executable_));
}

std::vector<float> Graph::replay(int replays, CUstream stream) const {
  const auto count = static_cast<std::size_t>(replays);
  const std::vector<Event> starts(count);
  const std::vector<Event> ends(count);
  COMMFUSE_DRIVER(cuGraphUpload(executable_, stream));
  for (std::size_t i = 0; i < count; ++i) {
    COMMFUSE_DRIVER(cuEventRecord(starts[i].get(), stream));
    COMMFUSE_DRIVER(cuGraphLaunch(executable_, stream));
    COMMFUSE_DRIVER(cuEventRecord(ends[i].get(), stream));
  }
  COMMFUSE_DRIVER(cuStreamSynchronize(stream));
  std::vector<float> milliseconds(count);
  for (std::size_t i = 0; i < count; ++i) {
    COMMFUSE_DRIVER(cuEventElapsedTime(&milliseconds[i], starts[i].get(), ends[i].get()));
  }
  return milliseconds;
}

}  // namespace commfuse::cli
