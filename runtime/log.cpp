#include "runtime/log.hpp"

#include <atomic>
#include <mutex>
#include <utility>

namespace commfuse {
namespace {

struct Sink {
  // Recursive, because a sink may call back into the library, which may log.
  std::recursive_mutex mutex;
  LogSink call;
  std::atomic<bool> set{false};
};

// Never destroyed: threads and static objects of the embedder may still log while the process ends.
Sink& sink() noexcept {
  static Sink& instance = *new Sink;
  return instance;
}

}  // namespace

void set_log_sink(LogSink call) {
  Sink& target = sink();
  const std::scoped_lock lock(target.mutex);
  target.set = static_cast<bool>(call);
  std::swap(target.call, call);
}

bool log_enabled() noexcept { return sink().set.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view message) noexcept {
  if (!log_enabled()) return;
  try {
    Sink& target = sink();
    const std::scoped_lock lock(target.mutex);
    // A copy, so that a sink which replaces itself does not destroy the function that is running.
    if (const LogSink call = target.call) call(level, message);
  } catch (...) {  // a failing sink must not fail the work that is being logged
  }
}

}  // namespace commfuse
