// Device threads as fibers: how they start, wait, go on and end.
#include <algorithm>
#include <span>
#include <utility>

#include "sim/engine.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define COMMFUSE_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COMMFUSE_SIM_ASAN 1
#endif
#endif
#ifdef COMMFUSE_SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace commfuse::sim {
namespace {

// A thread that polls without calling spin() must not keep the others from running.
constexpr u32 kMostOperationsInOneTurn = 4096;

// AddressSanitizer must be told of every change of stacks.
void leave_stack([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* to_bottom,
                 [[maybe_unused]] size_t bytes) {
#ifdef COMMFUSE_SIM_ASAN
  __sanitizer_start_switch_fiber(fake_stack, to_bottom, bytes);
#endif
}
void enter_stack([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** from_bottom,
                 [[maybe_unused]] size_t* from_bytes) {
#ifdef COMMFUSE_SIM_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, from_bottom, from_bytes);
#endif
}

const std::byte* bottom_of(const void* stack_top) {
  return static_cast<const std::byte*>(stack_top) - StackPool::kStackBytes;
}

}  // namespace

constinit thread_local Thread* current_thread = nullptr;

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
  const std::span<const u64> watched(thread.watch, std::min(thread.watched, kMaxWatched));
  const bool changed = std::any_of(watched.begin(), watched.end(),
                                   [&](u64 unit) { return watches_.changed_since(unit, thread.polling_since); });
  if (changed) {
    wake(thread);
    yield(thread, ThreadState::kReady);
  } else if (thread.watched > kMaxWatched) {
    rank.restless.push(&thread);
    yield(thread, ThreadState::kSpinning);
  } else {
    for (const u64 unit : watched) watches_.watch(thread, unit);
    thread.place_in_watching = static_cast<u32>(rank.watching.size());
    rank.watching.push_back(&thread);
    yield(thread, ThreadState::kSpinning);
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
    rank.launches.clear();
    rank.ordered.clear();
  }
  draining_.clear();
}

}  // namespace commfuse::sim
