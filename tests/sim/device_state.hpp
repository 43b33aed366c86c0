// What the simulator knows of a running launch: threads, warps, blocks, clusters, launches, ranks.
#pragma once

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "sim/pending_stores.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {

class Engine;
struct Block;
struct Cluster;
struct Launch;

constexpr u32 kWarpSize = 32;
constexpr u32 kMaxWatched = 24;

enum class ThreadState : u8 {
  kReady,
  kSpinning,
  kShuffle,
  kBlockBarrier,
  kClusterBarrier,
  kPredecessors,
  kExited,
};
constexpr u32 kThreadStates = 7;

/// Up to which step stores are ordered before what comes next, by where they come from.
struct Acquired {
  u64 from_cluster = 0;
  u64 from_rank = 0;
  u64 from_anywhere = 0;
  void merge(const Acquired& other) {
    from_cluster = std::max(from_cluster, other.from_cluster);
    from_rank = std::max(from_rank, other.from_rank);
    from_anywhere = std::max(from_anywhere, other.from_anywhere);
  }
};

struct Thread {
  Engine* engine = nullptr;
  Block* block = nullptr;
  u32 index = 0;
  ThreadState state = ThreadState::kReady;
  bool cluster_arrived = false;  ///< called cluster_arrive() and not yet cluster_wait()
  u64 cluster_phase = 0;         ///< Cluster::phase at that call
  u64 last_load = 0;             ///< key; what a spinning thread is waiting for
  u64 wakes = 0;                 ///< how often it stopped spinning, over all its lives
  u64 polling_since = 0;         ///< Engine::changes_ when it began to read what it will spin on
  u32 watched = 0;               ///< units in `watch`; more than it holds: anything may be what it waits for
  u32 place_in_watching = 0;     ///< in Rank::watching
  u64 watch[kMaxWatched];        ///< WatchTable units read since it last spun
  Origin origin;
  Acquired acquired;
  PendingStores pending;
  boost::context::fiber fiber;
  void* stack_top = nullptr;
};

enum class WarpOperation : u8 { kNone, kShuffleXor, kShuffleFrom, kBarrier };

struct Warp {
  WarpOperation operation = WarpOperation::kNone;
  u32 arrived = 0;  ///< lanes
  u32 exited = 0;   ///< lanes
  u32 value[kWarpSize];
  u32 argument[kWarpSize];
  u32 result[kWarpSize];
};

struct Block {
  Cluster* cluster = nullptr;
  u32 index = 0;  ///< in the grid
  u32 live = 0;   ///< threads that have not exited
  u32 at_barrier = 0;
  bool started = false;  ///< a thread of it has run
  bool released_dependents = false;
  std::unique_ptr<Thread[]> threads;
  std::vector<Warp> warps;
  PendingStores ordered;  ///< visible to the block's threads
  Acquired acquired;      ///< by threads that have come to a barrier
  std::unique_ptr<std::byte[]> shared_storage;
  std::byte* shared = nullptr;
  u32 shared_bytes = 0;
  const void* shared_type = nullptr;
};

struct Cluster {
  Launch* launch = nullptr;
  u64 number = 0;  ///< of all the world's clusters
  std::vector<Block> blocks;
  u32 live = 0;           ///< threads that have not exited
  u32 arrived = 0;        ///< threads, in this phase of the barrier
  u64 phase = 0;          ///< barriers completed
  PendingStores ordered;  ///< visible to the cluster's threads
  Acquired acquired;      ///< by threads that have come to a barrier
};

struct Launch {
  u32 rank = 0;
  u64 number = 0;  ///< of the rank's launches, from 0
  LaunchShape shape;
  std::function<void()> kernel;
  u32 next_block = 0;  ///< the first that is not resident yet
  u32 exited_blocks = 0;
  u32 released_blocks = 0;  ///< that called release_dependents() or exited
  bool complete = false;
  Launch* previous = nullptr;  ///< while it is not complete
  std::vector<Thread*> waiting_for_this;
  std::vector<std::unique_ptr<Cluster>> clusters;  ///< resident
  PendingStores exited;                            ///< stores of threads that have exited
};

/// Threads that can run: taken first come first served, or at random.
class ReadyList {
 public:
  [[nodiscard]] bool empty() const { return head_ == threads_.size(); }
  [[nodiscard]] size_t size() const { return threads_.size() - head_; }
  void push(Thread* thread) { threads_.push_back(thread); }
  Thread* take(size_t position) {
    std::swap(threads_[head_ + position], threads_[head_]);
    Thread* thread = threads_[head_++];
    if (head_ == threads_.size()) {
      threads_.clear();
      head_ = 0;
    } else if (head_ >= 4096 && head_ * 2 >= threads_.size()) {
      threads_.erase(threads_.begin(), threads_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    return thread;
  }

 private:
  std::vector<Thread*> threads_;
  size_t head_ = 0;
};

struct Rank {
  std::deque<std::unique_ptr<Launch>> launches;  ///< in order, incomplete ones and complete ones behind them
  u64 launch_count = 0;
  ReadyList ready;
  std::vector<Thread*> watching;  ///< spinning; woken when something that they read has changed
  ReadyList restless;             ///< spinning; poll after any change
  u64 polled_at = 0;              ///< Engine::changes_ when the restless threads were last made ready
  PendingStores ordered;          ///< visible to the rank's threads
  Acquired acquired;              ///< by threads that have released at gpu scope
};

}  // namespace commfuse::sim
