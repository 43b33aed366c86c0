#include "sim/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define COMMFUSE_SIM_ASAN 1
#else
#define COMMFUSE_SIM_ASAN 0
#endif

namespace commfuse::sim {
namespace {

// A thread that polls without calling spin() must not keep the others from running.
constexpr u32 kMostOperationsInOneTurn = 4096;
constexpr u64 kFirstLeapNs = 1'000;
constexpr u64 kLongestLeapNs = 1'000'000'000;
// Kernels look at the clock, and at the abort word, only once in so many polls; the leaps must not outrun them.
constexpr u32 kRoundsPerLeap = 64;

/// Stacks stay mapped from world to world: page faults would otherwise dominate small executions.
StackPool& stack_pool() {
  static thread_local StackPool pool;
  return pool;
}

// AddressSanitizer must be told of every change of stacks.
void leave_stack([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* to_bottom,
                 [[maybe_unused]] size_t bytes) {
#if COMMFUSE_SIM_ASAN
  __sanitizer_start_switch_fiber(fake_stack, to_bottom, bytes);
#endif
}
void enter_stack([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** from_bottom,
                 [[maybe_unused]] size_t* from_bytes) {
#if COMMFUSE_SIM_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, from_bottom, from_bytes);
#endif
}

const std::byte* bottom_of(const void* stack_top) {
  return static_cast<const std::byte*>(stack_top) - StackPool::kStackBytes;
}

}  // namespace

constinit thread_local Thread* current_thread = nullptr;

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
  preemption_period_ = options.preemption ? kPreemptionPeriods[random_.below(std::size(kPreemptionPeriods))] : 0;
  for (Rank& rank : ranks_) rank.ordered.attach(&pending_, nullptr);
}

Engine::~Engine() { abandon(); }

void Engine::launch(u32 rank, std::function<void()> kernel, const LaunchShape& shape) {
  if (rank >= ranks())
    throw Failure(FailureKind::kUsage, fmt::format("no rank {} to launch '{}' on", rank, shape.name));
  if (shape.blocks == 0 || shape.threads == 0 || shape.threads > 1024 || shape.cluster == 0 ||
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

// ---- residency ------------------------------------------------------------------------------------------------------

Launch* Engine::startable(Rank& rank) {
  for (const auto& launch : rank.launches) {
    if (launch->next_block < launch->shape.blocks) {
      const Launch* previous = launch->previous;
      const bool may_start =
          launch.get() == rank.launches.front().get() ||
          (launch->shape.dependent && (previous == nullptr || previous->released_blocks == previous->shape.blocks));
      const u32 limit = options_.resident_blocks;
      const bool fits = limit == 0 || resident(launch->rank) + launch->shape.cluster <= limit;
      return may_start && fits ? launch.get() : nullptr;
    }
  }
  return nullptr;
}

void Engine::admit() {
  admission_due_ = false;
  const bool in_turn = options_.policy == Policy::kRoundRobin;
  u32 rank = 0;
  for (u32 refused = 0; refused < ranks();) {
    if (!in_turn && refused == 0) rank = random_.below(ranks());
    if (Launch* launch = startable(ranks_[rank])) {
      admit_cluster(*launch);
      refused = 0;
    } else {
      ++refused;
    }
    rank = (rank + 1) % ranks();
  }
}

void Engine::admit_cluster(Launch& launch) {
  const LaunchShape& shape = launch.shape;
  auto cluster = std::make_unique<Cluster>();
  cluster->launch = &launch;
  cluster->live = shape.cluster * shape.threads;
  cluster->ordered.attach(&pending_, &ranks_[launch.rank].ordered);
  cluster->blocks = std::vector<Block>(shape.cluster);
  for (Block& block : cluster->blocks) {
    block.cluster = cluster.get();
    block.index = launch.next_block++;
    block.live = shape.threads;
    block.ordered.attach(&pending_, &cluster->ordered);
    block.threads = take_threads(shape.threads);
    block.warps.resize((shape.threads + kWarpSize - 1) / kWarpSize);
    if (shape.threads % kWarpSize != 0) block.warps.back().exited = ~0u << shape.threads % kWarpSize;
    for (u32 i = 0; i < shape.threads; ++i) {
      Thread& thread = block.threads[i];
      thread.engine = this;
      thread.block = &block;
      thread.index = i;
      thread.state = ThreadState::kReady;
      thread.cluster_arrived = false;
      thread.watched = 0;
      thread.polling_since = changes_;
      thread.pending.attach(&pending_, &block.ordered);
      ranks_[launch.rank].ready.push(&thread);
    }
  }
  resident(launch.rank) += shape.cluster;
  launch.clusters.push_back(std::move(cluster));
  ++changes_;
}

std::unique_ptr<Thread[]> Engine::take_threads(u32 count) {
  auto& ended = ended_threads_[count];
  if (ended.empty()) return std::make_unique<Thread[]>(count);
  auto threads = std::move(ended.back());
  ended.pop_back();
  return threads;
}

// ---- who runs next --------------------------------------------------------------------------------------------------

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
    ++changes_;
  }
}

// ---- fibers ---------------------------------------------------------------------------------------------------------

void Engine::make_fiber(Thread& thread) {
  thread.block->started = true;
  thread.fiber = boost::context::fiber(
      std::allocator_arg, StackPool::Allocator{&stacks_, &thread.stack_top},
      [this, &thread](boost::context::fiber&& scheduler) { return thread_main(thread, std::move(scheduler)); });
}

boost::context::fiber Engine::thread_main(Thread& thread, boost::context::fiber&& scheduler) {
  enter_stack(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
  scheduler_ = std::move(scheduler);
  try {
    thread.block->cluster->launch->kernel();
  } catch (const boost::context::detail::forced_unwind&) {
    leave_stack(nullptr, scheduler_stack_, scheduler_stack_bytes_);
    throw;  // the fiber was destroyed; boost ends it
  } catch (const Failure& failure) {
    error_ = std::make_exception_ptr(Failure(failure.kind(), locate(thread, failure.what())));
  } catch (...) {
    error_ = std::current_exception();
  }
  thread.state = ThreadState::kExited;
  leave_stack(nullptr, scheduler_stack_, scheduler_stack_bytes_);
  return std::move(scheduler_);
}

void Engine::resume(Thread& thread) {
  if (!thread.fiber && thread.state != ThreadState::kExited) make_fiber(thread);
  ++steps_;
  ++switches_;
  clock_ += options_.ns_per_step;
  until_preemption_ = preemption_period_ == 0 ? kMostOperationsInOneTurn : 1 + random_.below(2 * preemption_period_);
  current_thread = &thread;
  leave_stack(&fake_stack_, bottom_of(thread.stack_top), StackPool::kStackBytes);
  thread.fiber = std::move(thread.fiber).resume();
  enter_stack(fake_stack_, nullptr, nullptr);
  current_thread = nullptr;
}

void Engine::yield(Thread& thread, ThreadState state) {
  thread.state = state;
  void* fake_stack = nullptr;
  // A destructor, because an abandoned thread leaves the resume() below by an exception.
  struct Entry {
    Engine& engine;
    void*& fake_stack;
    ~Entry() { enter_stack(fake_stack, &engine.scheduler_stack_, &engine.scheduler_stack_bytes_); }
  } entry{*this, fake_stack};
  leave_stack(&fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  scheduler_ = std::move(scheduler_).resume();
}

void Engine::wake(Thread& thread) {
  thread.state = ThreadState::kReady;
  ranks_[thread.block->cluster->launch->rank].ready.push(&thread);
}

void Engine::spin(Thread& thread) {
  Rank& rank = ranks_[thread.block->cluster->launch->rank];
  bool changed = false;
  if (thread.watched > kMaxWatched) {
    rank.restless.push(&thread);
    yield(thread, ThreadState::kSpinning);
  } else {
    for (u32 i = 0; i < thread.watched; ++i) changed |= watches_.changed_since(thread.watch[i], thread.polling_since);
    if (changed) {
      wake(thread);
      yield(thread, ThreadState::kReady);
    } else {
      for (u32 i = 0; i < thread.watched; ++i) watches_.watch(thread, thread.watch[i]);
      thread.place_in_watching = static_cast<u32>(rank.watching.size());
      rank.watching.push_back(&thread);
      yield(thread, ThreadState::kSpinning);
    }
  }
  thread.watched = 0;
  thread.polling_since = changes_;
}

void Engine::count_operation(Thread& thread) {
  ++steps_;
  clock_ += options_.ns_per_step;
  if (--until_preemption_ == 0) {
    wake(thread);
    yield(thread, ThreadState::kReady);
  }
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Engine::finish(Thread& thread) {
  Block& block = *thread.block;
  Cluster& cluster = *block.cluster;
  Launch& launch = *cluster.launch;
  Warp& warp = block.warps[thread.index / kWarpSize];
  warp.exited |= 1u << thread.index % kWarpSize;
  if (warp.arrived != 0) {
    throw Failure(
        FailureKind::kMissingLane,
        locate(thread, fmt::format("exited while the lanes {:#010x} of its warp wait in a shuffle or warp barrier",
                                   warp.arrived)));
  }
  move(thread.pending, launch.exited);
  if (thread.cluster_arrived && thread.cluster_phase == cluster.phase) --cluster.arrived;
  --block.live;
  --cluster.live;
  if (block.live != 0 && block.at_barrier == block.live) open_block_barrier(block, nullptr);
  if (cluster.live != 0 && cluster.arrived == cluster.live) open_cluster_barrier(cluster);
  if (block.live == 0) finish_block(block);
}

void Engine::finish_block(Block& block) {
  Cluster& cluster = *block.cluster;
  Launch& launch = *cluster.launch;
  move(block.ordered, launch.exited);
  if (!block.released_dependents) ++launch.released_blocks;
  ++launch.exited_blocks;
  --resident(launch.rank);
  admission_due_ = true;
  ++changes_;
  if (cluster.live != 0) return;
  move(cluster.ordered, launch.exited);
  for (Block& ended : cluster.blocks) ended_threads_[launch.shape.threads].push_back(std::move(ended.threads));
  std::erase_if(launch.clusters, [&](const auto& c) { return c.get() == &cluster; });
  if (launch.exited_blocks != launch.shape.blocks) return;
  // The launch is complete when its last store has reached memory, which takes its time too.
  launch.exited.make_eager();
  ranks_[launch.rank].ordered.make_eager();
  draining_.push_back(&launch);
}

void Engine::complete_drained() {
  for (std::size_t i = 0; i < draining_.size();) {
    Launch& launch = *draining_[i];
    if (launch.exited.empty() && ranks_[launch.rank].ordered.eager_size() == 0) {
      draining_.erase(draining_.begin() + static_cast<std::ptrdiff_t>(i));
      complete(launch);
    } else {
      ++i;
    }
  }
}

void Engine::complete(Launch& launch) {
  Rank& rank = ranks_[launch.rank];
  launch.complete = true;
  admission_due_ = true;
  ++changes_;
  for (const auto& later : rank.launches) {
    if (later->previous == &launch) later->previous = nullptr;
  }
  for (Thread* thread : launch.waiting_for_this) wake(*thread);
  while (!rank.launches.empty() && rank.launches.front()->complete) rank.launches.pop_front();
}

void Engine::abandon() {
  // Fibers first: unwinding may run destructors of kernel code, which must find no thread to act for.
  for (Rank& rank : ranks_) {
    for (const auto& launch : rank.launches) {
      for (const auto& cluster : launch->clusters) {
        for (Block& block : cluster->blocks) {
          for (u32 i = 0; i < launch->shape.threads; ++i) {
            Thread& thread = block.threads[i];
            if (!thread.fiber) continue;
            leave_stack(&fake_stack_, bottom_of(thread.stack_top), StackPool::kStackBytes);
            thread.fiber = boost::context::fiber();
            enter_stack(fake_stack_, nullptr, nullptr);
          }
        }
      }
    }
    draining_.clear();
    rank.launches.clear();
    rank.ordered.clear();
  }
}

}  // namespace commfuse::sim
