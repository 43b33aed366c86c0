// The simulator: runs the kernels of templates/ whole, on the CPU, as ordinary C++. A file that simulates a kernel
// includes "sim/ptx.hpp" before the template, makes a World, allocates, launches and runs.
//
//     sim::World world(4, {.seed = 7, .policy = sim::Policy::kRandom});
//     auto* flag = world.allocate<u32>(0, 16, "flag");
//     world.memset(flag, 0, 64);
//     world.launch(0, &kernel<Config>, params, {.blocks = 2, .threads = 64});
//     world.run();   // throws sim::Failure
//
// Execution. Every device thread is a fiber; all run on the calling OS thread, one at a time, in an order that the seed
// and the policy fix: equal options give equal executions, in any process. Threads change places where they wait (spin,
// barrier, shuffle, wait_for_predecessors) and, unless Options::preemption is off, at some memory operations. How
// often, and how long stores stay unseen, is drawn anew for each seed. A rank has one in-order queue of launches. A
// thread that spins polls again when something that it read has changed, and now and then without.
//
// Time. The clock advances with every step, and in leaps, ever longer, when all that is left is to wait, so that the
// kernels' own deadlines are reached quickly; with no deadline, waiting for ever is reported as a deadlock. A deadline
// that is short in steps can pass for want of turns, under Policy::kStarveOne above all: give kernels seconds.
//
// Memory. Stores stay with their thread and reach memory later, word by word (32 bits), in any order of addresses. The
// stores of one thread to one word keep their order. Who sees a store that has not reached memory yet:
//   - its thread, at once;
//   - the threads of its block, after block_barrier() or warp_barrier(); of its cluster, after the cluster barrier;
//   - the threads of its rank, after a gpu-scope fence or release by a thread that sees it by the rules above.
// It has reached memory, where everybody sees it, after a sys-scope fence or release by a thread that sees it, and when
// its kernel has completed, some time after its last thread has exited. Stores may also reach memory on their own at
// any time before; relaxed_sys and release_sys stores always do, in finite time; weak stores do in some executions and
// never in others. Atomics act on memory at once. A weak load may, in some executions, give what a word held before its
// last change, unless the thread is ordered after that store: by an acquire or fence of a scope that covers both (an
// acquire orders after all stores before it), by a barrier with a thread that is, by wait_for_predecessors() or by the
// start of its kernel. Other loads are up to date. Stronger than a GPU, hence not found: warp_barrier() orders for the
// whole block; a sys-scope release also covers what other threads of the rank released at gpu scope, seen or not;
// shared memory is immediate. Not checked: reads of uninitialised shared memory (it is filled with 0xCD) and data races
// as such.
//
// Programmatic dependent launch. A launch with `dependent` starts when every block of the launch before has called
// release_dependents() or ended. wait_for_predecessors() waits until the launch before it is complete; what came before
// that is only complete if that launch waited for it.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "sim/options.hpp"

namespace commfuse::sim {

class Engine;

struct LaunchShape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 32;   ///< of a block
  std::uint32_t cluster = 1;    ///< blocks of a cluster; divides `blocks`
  bool dependent = false;       ///< programmatic dependent launch on the launch before
  std::string name = "kernel";  ///< for messages
};

struct Statistics {
  std::uint64_t steps = 0;            ///< turns of threads and memory operations
  std::uint64_t switches = 0;         ///< turns of threads
  std::uint64_t delivered_words = 0;  ///< words that reached memory from a thread's pending stores
};

class World {
 public:
  explicit World(std::uint32_t ranks, const Options& options = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Device memory of `rank`, 256-byte aligned, uninitialised, with red zones around it. Lives until deallocate() or
  /// the end of the world. Reading or writing it from the host is allowed while run() is not running and inside at();
  /// what the host writes through the pointer must be announced with mark_initialised().
  template <typename T>
  T* allocate(std::uint32_t rank, std::size_t count, std::string_view name) {
    return static_cast<T*>(allocate_bytes(rank, count * sizeof(T), name));
  }
  /// Pinned host memory that every rank can address; zeroed and initialised.
  template <typename T>
  T* allocate_host(std::size_t count, std::string_view name) {
    return static_cast<T*>(allocate_host_bytes(count * sizeof(T), name));
  }
  /// Makes existing host memory addressable by every rank. It counts as initialised. 16-byte aligned.
  void register_host(void* memory, std::size_t bytes, std::string_view name);
  /// Takes what allocate(), allocate_host() or register_host() gave; accesses from now on are failures.
  void deallocate(const void* memory);

  void memset(void* destination, int value, std::size_t bytes);
  void write(void* destination, const void* source, std::size_t bytes);
  void mark_initialised(const void* memory, std::size_t bytes);
  /// Throws Failure(kUninitialised) for the first byte that nobody wrote.
  void require_initialised(const void* memory, std::size_t bytes) const;
  /// `count` values as the host finds them after run(); all must have been written.
  template <typename T>
  std::vector<T> read(const T* source, std::size_t count) const {
    require_initialised(source, count * sizeof(T));
    std::vector<T> values(count);
    std::memcpy(values.data(), source, count * sizeof(T));
    return values;
  }

  /// Puts a launch at the end of the rank's queue; run() executes it. `params` is copied now.
  template <typename Params>
  void launch(std::uint32_t rank, void (*kernel)(const Params&), const std::type_identity_t<Params>& params,
              const LaunchShape& shape) {
    launch(rank, std::function<void()>([kernel, params] { kernel(params); }), shape);
  }
  /// The callable is run once by every thread.
  void launch(std::uint32_t rank, std::function<void()> kernel, const LaunchShape& shape);

  /// Runs `action` on the host during run(), as soon as the simulated clock reaches `ns` (an abort, for instance).
  void at(std::uint64_t ns, std::function<void()> action);

  /// Runs all launches to completion. After a Failure the world is of no further use.
  void run();

  [[nodiscard]] std::uint32_t ranks() const;
  [[nodiscard]] std::uint64_t now_ns() const;
  [[nodiscard]] const Options& options() const;
  [[nodiscard]] Statistics statistics() const;

 private:
  void* allocate_bytes(std::uint32_t rank, std::size_t bytes, std::string_view name);
  void* allocate_host_bytes(std::size_t bytes, std::string_view name);

  std::unique_ptr<Engine> engine_;
};

}  // namespace commfuse::sim
