#include "cache/obtain.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "cache/flights.hpp"
#include "cache/locks.hpp"
#include "cache/sha256.hpp"

namespace commfuse::cache {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Of the process, not of a store: a key says everything about a kernel, wherever it will be stored. Never destroyed,
// because threads may be compiling while the process exits.
Flights<Compiled>& flights() {
  static auto* const kFlights = new Flights<Compiled>;
  return *kFlights;
}

struct Task {
  std::size_t index = 0;
  int visits = 0;  // how often the key was busy
  std::optional<Clock::time_point> busy_since;
  Clock::time_point not_before{};
  std::shared_future<Landing<Compiled>> passenger;  // of the flight that was found under way in this process
};

class Campaign {
 public:
  Campaign(const Store& store, std::span<const Wanted> wanted, const std::function<Compiled(std::size_t)>& compile,
           const ObtainOptions& options, const std::function<void(std::size_t, const Obtained&)>& done)
      : store_(store), wanted_(wanted), compile_(compile), options_(options), done_(done), results_(wanted.size()) {
    const std::size_t n = wanted.size();
    const std::size_t ranks = static_cast<std::size_t>(std::max(options.ranks, 1));
    const std::size_t rank = static_cast<std::size_t>(std::max(options.rank, 0)) % ranks;
    for (std::size_t i = 0; i < n; ++i) {
      Task task;
      task.index = (i + rank * n / ranks) % n;
      waiting_.push_back(task);
    }
  }

  std::vector<Obtained> run() {
    std::vector<std::thread> helpers;
    const std::size_t jobs = static_cast<std::size_t>(std::max(options_.jobs, 1));
    try {
      for (std::size_t i = 1; i < std::min(jobs, wanted_.size()); ++i) helpers.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // Fewer threads than asked for do the same work.
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    if (broken_) std::rethrow_exception(broken_);
    return std::move(results_);
  }

 private:
  void work() {
    try {
      while (std::optional<Task> task = take()) {
        if (visit(*task)) {
          finish(*task);
        } else {
          put_back(std::move(*task));
        }
      }
    } catch (...) {  // of `done`, or no memory: the others stop as well
      const std::scoped_lock lock(mutex_);
      if (!broken_) broken_ = std::current_exception();
      waiting_.clear();
      changed_.notify_all();
    }
  }

  std::optional<Task> take() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (waiting_.empty()) return std::nullopt;
      const Clock::time_point now = Clock::now();
      const auto next = std::min_element(waiting_.begin(), waiting_.end(),
                                         [](const Task& a, const Task& b) { return a.not_before < b.not_before; });
      if (next->not_before <= now) {
        Task task = std::move(*next);
        waiting_.erase(next);
        return task;
      }
      changed_.wait_until(lock, next->not_before);
    }
  }

  void put_back(Task task) {
    const Clock::time_point now = Clock::now();
    if (!task.busy_since) task.busy_since = now;
    task.not_before = now + milliseconds(std::min(1 << std::min(task.visits, 5), 20));
    ++task.visits;
    const std::scoped_lock lock(mutex_);
    if (broken_) return;
    waiting_.push_back(std::move(task));
    changed_.notify_one();
  }

  void finish(const Task& task) {
    if (!done_) return;
    const std::scoped_lock lock(done_mutex_);
    done_(task.index, results_[task.index]);
  }

  bool look_up(const Wanted& wanted, Obtained& result, bool first) {
    Lookup found =
        first ? store_.find(wanted.key, wanted.signature_json) : store_.peek(wanted.key, wanted.signature_json);
    if (!found) {
      if (first) result.miss = std::move(found);
      return false;
    }
    result.origin = Origin::kHit;
    result.cubin = std::move(found.hit->cubin);
    result.cubin_sha256 = std::move(found.hit->cubin_sha256);
    result.metadata_json = std::move(found.hit->metadata_json);
    return true;
  }

  // Whether the kernel is had, or failed, after this visit. False: somebody else is at it.
  bool visit(Task& task) {
    const Wanted& wanted = wanted_[task.index];
    Obtained& result = results_[task.index];
    if (look_up(wanted, result, task.visits == 0)) return true;
    spare_from_eviction();
    const bool out_of_patience = task.busy_since && Clock::now() - *task.busy_since >= options_.patience;

    if (task.passenger.valid() && ride(task, result)) return true;
    auto boarding = flights().board(wanted.key);
    if (!boarding.pilot && !out_of_patience) {
      task.passenger = std::move(boarding.passenger);
      return false;
    }

    LockAttempt lock = store_.locks().try_lock(wanted.key);
    if (lock.result == LockAttempt::Result::kBusy && !out_of_patience) return false;
    // Whoever was at it before may have published since the first look.
    if (look_up(wanted, result, false)) return true;

    Landing<Compiled> landing;
    const Clock::time_point start = Clock::now();
    try {
      landing.value = compile_(task.index);
    } catch (...) {
      landing.error = std::current_exception();
    }
    result.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    take_over(wanted, result, landing, Origin::kCompiled);
    if (boarding.pilot) boarding.pilot->land(std::move(landing));
    return true;
  }

  // Whether the flight that this task waits for has brought the kernel, or its failure.
  bool ride(Task& task, Obtained& result) {
    // No waiting here, so that this thread can do other kernels meanwhile.
    if (task.passenger.wait_for(milliseconds(0)) != std::future_status::ready) return false;
    const std::shared_future<Landing<Compiled>> passenger = std::exchange(task.passenger, {});
    const Landing<Compiled>& landing = passenger.get();
    if (!landing.value && !landing.error) return false;
    take_over(wanted_[task.index], result, landing, Origin::kShared);
    return true;
  }

  // At the first miss: compiling may take long, and what the list still needs must not be evicted for what is published
  // meanwhile. A list that is all hits never gets here.
  void spare_from_eviction() {
    std::call_once(lease_once_, [this] {
      std::vector<std::string> keys;
      keys.reserve(wanted_.size());
      for (const Wanted& one : wanted_) keys.push_back(one.key);
      lease_ = store_.locks().lease(keys);
    });
  }

  void take_over(const Wanted& wanted, Obtained& result, const Landing<Compiled>& landing, Origin origin) {
    if (landing.error) {
      result.origin = Origin::kFailed;
      result.error = landing.error;
      return;
    }
    result.origin = origin;
    result.cubin = landing.value->cubin;
    result.cubin_sha256 = sha256_hex(result.cubin);
    result.facts_json = landing.value->facts_json;
    result.publication = store_.publish(wanted.key, wanted.signature_json, result.cubin, result.facts_json);
  }

  const Store& store_;
  const std::span<const Wanted> wanted_;
  const std::function<Compiled(std::size_t)>& compile_;
  const ObtainOptions& options_;
  const std::function<void(std::size_t, const Obtained&)>& done_;
  std::vector<Obtained> results_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  std::exception_ptr broken_;
  std::mutex done_mutex_;
  std::once_flag lease_once_;
  Locks::Lease lease_;
};

}  // namespace

std::vector<Obtained> obtain(const Store& store, std::span<const Wanted> wanted,
                             const std::function<Compiled(std::size_t)>& compile, const ObtainOptions& options,
                             const std::function<void(std::size_t, const Obtained&)>& done) {
  return Campaign(store, wanted, compile, options, done).run();
}

}  // namespace commfuse::cache
