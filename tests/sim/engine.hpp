// The scheduler and the memory system behind World.
#pragma once

#include <exception>
#include <map>
#include <string>
#include <vector>

#include "sim/arena.hpp"
#include "sim/device_state.hpp"
#include "sim/random.hpp"
#include "sim/stack_pool.hpp"
#include "sim/watch_table.hpp"

namespace commfuse::sim {

class Engine {
 public:
  Engine(u32 ranks, const Options& options);
  ~Engine();

  Arena& arena() { return arena_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] u32 ranks() const { return static_cast<u32>(ranks_.size()); }
  [[nodiscard]] u64 clock() const { return clock_; }
  [[nodiscard]] Statistics statistics() const { return {steps_, switches_, delivered_}; }

  void launch(u32 rank, std::function<void()> kernel, const LaunchShape& shape);
  void at(u64 ns, std::function<void()> action) { host_actions_.emplace(ns, std::move(action)); }
  void run();

  // ---- called by device threads (intrinsics) ----
  void load(Thread& thread, const void* address, void* value, u32 bytes, LoadOrder order);
  void store(Thread& thread, void* address, const void* value, u32 bytes, bool eager);
  void release(Thread& thread, Scope scope);
  void acquire(Thread& thread, Scope scope);
  /// Replaces the word by update(old); gives old.
  template <typename Update>
  u32 atomic(Thread& thread, u32* address, Update&& update);
  u32 warp_exchange(Thread& thread, WarpOperation operation, u32 value, u32 argument);
  void warp_barrier(Thread& thread);
  void block_barrier(Thread& thread);
  void cluster_arrive(Thread& thread);
  void cluster_wait(Thread& thread);
  void* shared_memory(Thread& thread, u32 bytes, const void* type);
  void store_shared_of_block(Thread& thread, float* address, u32 block, float v);
  void wait_for_predecessors(Thread& thread);
  void release_dependents(Thread& thread);
  void spin(Thread& thread);

 private:
  // engine_blocks.cpp
  void admit();
  [[nodiscard]] Launch* startable(Rank& rank);
  void admit_cluster(Launch& launch);
  [[nodiscard]] u32& resident(u32 rank) { return resident_[options_.shared_device ? 0 : rank]; }
  [[nodiscard]] Thread* pick();
  [[nodiscard]] bool runnable(Rank& rank);
  Thread* take_from(u32 rank);
  [[nodiscard]] Thread* pick_other_than(u32 rank);
  [[nodiscard]] Thread* pick_idle_poller();
  void promote_restless(Rank& rank);
  void poll_all(Rank& rank);
  void stop_watching(Thread& thread);
  void note_change(u64 key);
  [[nodiscard]] std::unique_ptr<Thread[]> take_threads(u32 count);
  void idle();
  void resume(Thread& thread);
  void make_fiber(Thread& thread);
  boost::context::fiber thread_main(Thread& thread, boost::context::fiber&& scheduler);
  void finish(Thread& thread);
  void finish_block(Block& block);
  void complete_drained();
  void complete(Launch& launch);
  void run_host_actions();
  void abandon();

  void yield(Thread& thread, ThreadState state);
  void wake(Thread& thread);
  void count_operation(Thread& thread);

  // engine_sync.cpp
  void open_block_barrier(Block& block, const Thread* last);
  void open_cluster_barrier(Cluster& cluster);

  // engine_memory.cpp
  void apply(const PendingStores::Cell& cell, u32 word);
  void deliver_older(PendingStores* set, u64 key, u32 word);
  /// Brings a word to memory, after the older stores to it in the sets around its own.
  void deliver(PendingStores* outer, const PendingStores::Cell& cell, u32 word);
  static void overlay(PendingStores::Cell& seen, const PendingStores* set, u64 cell_key);
  void deliver_all(PendingStores& set);
  void deliver_word_at(PendingStores& set, u32 position, bool only_eager);
  void deliver_word_of(Thread& thread, u64 key);
  void move(PendingStores& from, PendingStores& to);
  void deliver_some();
  struct Change {
    u64 key;
    u32 value;
    u32 mask;
    u64 issued;
    Origin origin;
  };
  void change_memory(const Change& change);
  /// Puts the value before the last change in place of a word's, if the thread is not ordered after that change.
  void make_stale(const Thread& thread, u64 key, u32& value);
  [[nodiscard]] Acquired everything() const { return {steps_, steps_, steps_}; }

  // report.cpp
  [[noreturn]] void deadlock() const;
  /// The message with its place in front and the execution behind.
  [[nodiscard]] std::string locate(const Thread& thread, const std::string& what) const;
  [[nodiscard]] std::string describe_stuck(const Launch& launch, FailureKind& kind) const;

  Options options_;
  Arena arena_;
  Random random_;
  PendingTotals pending_;  // outlives every set
  // Threads of ended blocks, by the size of the block. They stay until the end, because the watch table may still name
  // them, and are used again with what their pending stores have allocated.
  std::map<u32, std::vector<std::unique_ptr<Thread[]>>> ended_threads_;
  WatchTable watches_;
  ValueHistory history_;
  std::vector<Rank> ranks_;
  std::vector<u32> resident_;  // blocks on each device
  StackPool& stacks_;
  std::multimap<u64, std::function<void()>> host_actions_;

  // Drawn from the seed.
  u32 subject_;
  u32 delivery_period_;    // a batch of pending words is delivered once in this many turns; 0: only when idle
  u32 delivery_divisor_;   // a batch is this fraction of what is pending
  bool weak_drift_;        // weak stores reach memory on their own
  bool stale_loads_;       // weak loads may give what was there before
  u32 preemption_period_;  // memory operations between forced changes of threads, on average; 0: never

  boost::context::fiber scheduler_;
  std::exception_ptr error_;
  bool admission_due_ = true;
  u32 next_rank_ = 0;
  std::vector<Launch*> draining_;  // all blocks have exited, not all stores have reached memory
  u32 until_preemption_ = 0;
  u64 steps_ = 0;
  u64 switches_ = 0;
  u64 delivered_ = 0;
  u64 clock_ = 0;
  u64 cluster_count_ = 0;
  u64 changes_ = 1;  // of memory, and of what launches wait for
  u64 idle_since_ = 0;
  u32 idle_rounds_ = 0;
  u64 idle_leap_ = 0;

  // Stack bounds of the scheduler, for AddressSanitizer.
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
};

/// The device thread that runs now; null on the host.
extern constinit thread_local Thread* current_thread;

template <typename Update>
u32 Engine::atomic(Thread& thread, u32* address, Update&& update) {
  count_operation(thread);
  const u64 key = arena_.check(address, 4, "atomic");
  deliver_word_of(thread, key);
  if (!arena_.readable(key, 4)) arena_.refuse_uninitialised(key, "atomic");
  u32 old;
  std::memcpy(&old, arena_.memory(key), 4);
  change_memory({key, update(old), 0xf, steps_, thread.origin});
  return old;
}

}  // namespace commfuse::sim
