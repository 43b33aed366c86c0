#include "runtime/background_build.hpp"

#include <algorithm>
#include <utility>

namespace commfuse::runtime {

BackgroundBuild::BackgroundBuild(Work work) : work_(std::move(work)) {}

BackgroundBuild::~BackgroundBuild() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<BuildResult> BackgroundBuild::ask(std::span<const KernelSpec> specs) {
  const std::scoped_lock lock(mutex_);
  const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& each) {
    return std::equal(each.specs.begin(), each.specs.end(), specs.begin(), specs.end());
  });
  if (job == jobs_.end()) {
    jobs_.push_back({.specs = {specs.begin(), specs.end()}});
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
    return std::nullopt;
  }
  if (!job->finished) return std::nullopt;
  const Job done = std::move(*job);
  jobs_.erase(job);
  if (done.failure != nullptr) std::rethrow_exception(done.failure);
  return std::move(done.result);
}

std::size_t BackgroundBuild::pending() const {
  const std::scoped_lock lock(mutex_);
  return jobs_.size();
}

void BackgroundBuild::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::list<Job>::iterator job;
    changed_.wait(lock, [&] {
      job = std::find_if(jobs_.begin(), jobs_.end(), [](const Job& each) { return !each.finished; });
      return ending_ || job != jobs_.end();
    });
    if (ending_) return;
    // Only this thread finishes jobs, and only finished ones leave the list: `job` stays.
    lock.unlock();
    std::optional<BuildResult> result;
    std::exception_ptr failure;
    try {
      result = work_(job->specs);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    job->result = std::move(result);
    job->failure = failure;
    job->finished = true;
  }
}

}  // namespace commfuse::runtime
