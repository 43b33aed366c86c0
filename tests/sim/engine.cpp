// Which thread runs next, and what happens when none can.
#include "sim/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace commfuse::sim {
namespace {

constexpr u64 kFirstLeapNs = 1'000;
constexpr u64 kLongestLeapNs = 1'000'000'000;
// Kernels look at the clock, and at the abort word, only once in so many polls; the leaps must not outrun them.
constexpr u32 kRoundsPerLeap = 64;

/// Stacks stay mapped from world to world: page faults would otherwise dominate small executions.
StackPool& stack_pool() {
  static thread_local StackPool pool;
  return pool;
}

}  // namespace

Engine::Engine(u32 ranks, const Options& options)
    : options_(options),
      arena_(ranks, options.bytes_per_rank),
      random_(options.seed * 4 + static_cast<u64>(options.policy)),
      ranks_(ranks),
      resident_(options.shared_device ? 1 : ranks),
      stacks_(stack_pool()) {
  constexpr u32 kDeliveryPeriods[] = {1, 4, 32, 256, 0};
  constexpr u32 kDeliveryDivisors[] = {2, 16, 64};
  constexpr u32 kPreemptionPeriods[] = {0, 3, 20, 200};
  subject_ = options.subject_rank.value_or(random_.below(ranks));
  delivery_period_ = kDeliveryPeriods[random_.below(std::size(kDeliveryPeriods))];
  delivery_divisor_ = kDeliveryDivisors[random_.below(std::size(kDeliveryDivisors))];
  weak_drift_ = random_.one_in(2);
  stale_loads_ = options.weak_memory && random_.one_in(2);
  preemption_period_ = options.preemption ? kPreemptionPeriods[random_.below(std::size(kPreemptionPeriods))] : 0;
  for (Rank& rank : ranks_) rank.ordered.attach(&pending_, nullptr);
}

Engine::~Engine() { abandon(); }

void Engine::launch(u32 rank, std::function<void()> kernel, const LaunchShape& shape) {
  if (rank >= ranks())
    throw Failure(FailureKind::kUsage, fmt::format("no rank {} to launch '{}' on", rank, shape.name));
  if (shape.blocks == 0 || shape.threads == 0 || shape.threads > 1024 || shape.cluster == 0 || shape.cluster > 16 ||
      shape.blocks % shape.cluster != 0) {
    throw Failure(FailureKind::kUsage, fmt::format("'{}': {} blocks of {} threads in clusters of {} is no launch",
                                                   shape.name, shape.blocks, shape.threads, shape.cluster));
  }
  auto launch = std::make_unique<Launch>();
  launch->rank = rank;
  launch->number = ranks_[rank].launch_count++;
  launch->shape = shape;
  launch->kernel = std::move(kernel);
  launch->previous = ranks_[rank].launches.empty() ? nullptr : ranks_[rank].launches.back().get();
  launch->exited.attach(&pending_, &ranks_[rank].ordered);
  ranks_[rank].launches.push_back(std::move(launch));
  admission_due_ = true;
}

void Engine::promote_restless(Rank& rank) {
  rank.polled_at = changes_;
  while (!rank.restless.empty()) wake(*rank.restless.take(0));
}

void Engine::poll_all(Rank& rank) {
  promote_restless(rank);
  while (!rank.watching.empty()) {
    Thread* thread = rank.watching.front();
    stop_watching(*thread);
    wake(*thread);
  }
}

void Engine::stop_watching(Thread& thread) {
  std::vector<Thread*>& watching = ranks_[thread.block->cluster->launch->rank].watching;
  watching.back()->place_in_watching = thread.place_in_watching;
  watching[thread.place_in_watching] = watching.back();
  watching.pop_back();
  ++thread.wakes;
}

bool Engine::runnable(Rank& rank) {
  if (rank.ready.empty() && !rank.restless.empty() && rank.polled_at != changes_) promote_restless(rank);
  return !rank.ready.empty();
}

Thread* Engine::take_from(u32 index) {
  ReadyList& ready = ranks_[index].ready;
  return ready.take(options_.policy == Policy::kRoundRobin ? 0 : random_.below(ready.size()));
}

/// Now and then a thread polls although nothing that it read has changed: its time may have come.
Thread* Engine::pick_idle_poller() {
  const u32 index = random_.below(ranks());
  Rank& rank = ranks_[index];
  if (rank.watching.empty() || (options_.policy == Policy::kStarveOne && index == subject_)) return nullptr;
  Thread* thread = rank.watching[random_.below(rank.watching.size())];
  stop_watching(*thread);
  thread->state = ThreadState::kReady;
  return thread;
}

Thread* Engine::pick_other_than(u32 excluded) {
  const u32 first = random_.below(ranks());
  for (u32 i = 0; i < ranks(); ++i) {
    const u32 rank = (first + i) % ranks();
    if (rank != excluded && runnable(ranks_[rank])) return take_from(rank);
  }
  return nullptr;
}

Thread* Engine::pick() {
  constexpr u32 kNoRank = ~0u;
  constexpr u32 kIdlePollPeriod = 64;
  if (random_.one_in(kIdlePollPeriod)) {
    if (Thread* thread = pick_idle_poller()) return thread;
  }
  switch (options_.policy) {
    case Policy::kRoundRobin:
      for (u32 i = 0; i < ranks(); ++i) {
        const u32 rank = (next_rank_ + i) % ranks();
        if (runnable(ranks_[rank])) {
          next_rank_ = rank + 1;
          return take_from(rank);
        }
      }
      return nullptr;
    case Policy::kRandom:
      return pick_other_than(kNoRank);
    case Policy::kStarveOne: {
      Thread* other = random_.one_in(1024) && runnable(ranks_[subject_]) ? nullptr : pick_other_than(subject_);
      if (other != nullptr) return other;
      return runnable(ranks_[subject_]) ? take_from(subject_) : nullptr;
    }
    case Policy::kFavourOne:
      return runnable(ranks_[subject_]) ? take_from(subject_) : pick_other_than(subject_);
  }
  return nullptr;
}

void Engine::run() {
  if (error_ != nullptr) throw Failure(FailureKind::kUsage, "run() after a failure");
  history_.clear();  // the host may have written since
  try {
    while (true) {
      if (admission_due_) admit();
      if (!host_actions_.empty() && host_actions_.begin()->first <= clock_) run_host_actions();
      Thread* thread = pick();
      if (thread == nullptr) {
        if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.launches.empty(); })) break;
        idle();
        continue;
      }
      resume(*thread);
      if (error_ != nullptr) std::rethrow_exception(error_);
      if (thread->state == ThreadState::kExited) finish(*thread);
      if (pending_.cells != 0 && delivery_period_ != 0 && random_.one_in(delivery_period_)) deliver_some();
      if (!draining_.empty()) complete_drained();
      if (steps_ > options_.max_steps) {
        throw Failure(FailureKind::kStepLimit,
                      fmt::format("more than {} steps [{}]", options_.max_steps, sim::describe(options_)));
      }
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  if (error_ != nullptr) {
    abandon();
    std::rethrow_exception(error_);
  }
}

void Engine::idle() {
  if (pending_.eager_cells != 0 || (weak_drift_ && pending_.cells != 0)) {
    deliver_some();
    complete_drained();
    return;
  }
  if (idle_since_ != changes_) {
    idle_since_ = changes_;
    idle_rounds_ = 0;
    idle_leap_ = kFirstLeapNs;
  }
  const bool polling = std::any_of(ranks_.begin(), ranks_.end(),
                                   [](const Rank& r) { return !r.watching.empty() || !r.restless.empty(); });
  if (host_actions_.empty() && (!polling || ++idle_rounds_ > options_.idle_rounds)) deadlock();
  u64 leap = idle_leap_;
  if (!host_actions_.empty()) leap = std::min(leap, host_actions_.begin()->first - clock_);
  clock_ += leap;
  if (idle_rounds_ % kRoundsPerLeap == 0) idle_leap_ = std::min(idle_leap_ * 2, kLongestLeapNs);
  for (Rank& rank : ranks_) poll_all(rank);
}

void Engine::run_host_actions() {
  while (!host_actions_.empty() && host_actions_.begin()->first <= clock_) {
    const auto action = std::move(host_actions_.begin()->second);
    host_actions_.erase(host_actions_.begin());
    action();
    history_.clear();
    ++changes_;
  }
}

}  // namespace commfuse::sim
