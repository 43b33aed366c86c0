// The words of failures.
#include <fmt/format.h>

#include <algorithm>

#include "sim/engine.hpp"

namespace commfuse::sim {
namespace {

const char* name_of(Policy policy) {
  switch (policy) {
    case Policy::kRoundRobin:
      return "round robin";
    case Policy::kRandom:
      return "random";
    case Policy::kStarveOne:
      return "starve one rank";
    case Policy::kFavourOne:
      return "favour one rank";
  }
  return "unknown";
}

bool blocked(ThreadState state) {
  return state != ThreadState::kReady && state != ThreadState::kSpinning && state != ThreadState::kExited;
}

}  // namespace

std::string describe(const Options& options) {
  std::string text = fmt::format("seed {}, policy {}", options.seed, name_of(options.policy));
  if (options.subject_rank) text += fmt::format(" {}", *options.subject_rank);
  return text + (options.weak_memory ? ", weak memory" : ", strong memory");
}

std::vector<Options> executions(std::uint32_t count, const Options& base) {
  std::vector<Options> all(count, base);
  for (std::uint32_t i = 0; i < count; ++i) {
    all[i].seed = base.seed + i;
    all[i].policy = static_cast<Policy>(i % 4);
  }
  return all;
}

std::string Engine::locate(const Thread& thread, const std::string& what) const {
  const Launch& launch = *thread.block->cluster->launch;
  return fmt::format("rank {}, launch {} '{}', block {}, thread {}: {} [{}]", launch.rank, launch.number,
                     launch.shape.name, thread.block->index, thread.index, what, sim::describe(options_));
}

std::string Engine::describe_stuck(const Launch& launch, FailureKind& kind) const {
  std::string text = fmt::format("\n  rank {}, launch {} '{}':", launch.rank, launch.number, launch.shape.name);
  if (launch.next_block < launch.shape.blocks) {
    text += fmt::format(" blocks {}-{} are not resident", launch.next_block, launch.shape.blocks - 1);
    text += launch.clusters.empty() && launch.next_block == 0 && launch.previous != nullptr
                ? " (they wait for the launch before);"
                : fmt::format(" (the device holds {} blocks at most);", options_.resident_blocks);
  }
  for (const auto& cluster : launch.clusters) {
    u32 cluster_count[kThreadStates] = {};
    for (const Block& block : cluster->blocks) {
      u32 count[kThreadStates] = {};
      const Thread* spinning = nullptr;
      for (u32 i = 0; i < launch.shape.threads; ++i) {
        const Thread& thread = block.threads[i];
        ++count[static_cast<u32>(thread.state)];
        if (thread.state == ThreadState::kSpinning && spinning == nullptr) spinning = &thread;
        if (thread.state != ThreadState::kShuffle) continue;
        const Warp& warp = block.warps[i / kWarpSize];
        u32 missing = 0;
        for (u32 lane = 0; lane < kWarpSize; ++lane) {
          const bool arrived = (warp.arrived >> lane & 1u) != 0;
          if (!arrived && blocked(block.threads[i - i % kWarpSize + lane].state)) missing |= 1u << lane;
        }
        if (missing == ~warp.arrived && (warp.arrived & ((1u << i % kWarpSize) - 1)) == 0) {
          text += fmt::format("\n    block {}, warp {}: the lanes {:#010x} do not take part in a shuffle;", block.index,
                              i / kWarpSize, missing);
          kind = FailureKind::kMissingLane;
        }
      }
      const auto at = [&](ThreadState state) { return count[static_cast<u32>(state)]; };
      text += fmt::format("\n    block {}:", block.index);
      if (spinning != nullptr) {
        text += fmt::format(" {} threads spin, thread {} on {};", at(ThreadState::kSpinning), spinning->index,
                            arena_.describe(spinning->last_load));
      }
      if (at(ThreadState::kShuffle) != 0)
        text += fmt::format(" {} threads are in a shuffle;", at(ThreadState::kShuffle));
      if (at(ThreadState::kBlockBarrier) != 0) {
        text += fmt::format(" {} threads are at a block barrier;", at(ThreadState::kBlockBarrier));
      }
      if (at(ThreadState::kClusterBarrier) != 0) {
        text += fmt::format(" {} threads are at a cluster barrier;", at(ThreadState::kClusterBarrier));
      }
      if (at(ThreadState::kPredecessors) != 0) {
        text += fmt::format(" {} threads wait for the launch before;", at(ThreadState::kPredecessors));
      }
      if (at(ThreadState::kExited) != 0) text += fmt::format(" {} threads have exited;", at(ThreadState::kExited));
      for (u32 state = 0; state < kThreadStates; ++state) cluster_count[state] += count[state];
    }
    const auto in_cluster = [&](ThreadState state) { return cluster_count[static_cast<u32>(state)]; };
    const bool at_barrier = in_cluster(ThreadState::kBlockBarrier) + in_cluster(ThreadState::kClusterBarrier) != 0;
    const bool hopeful = in_cluster(ThreadState::kSpinning) + in_cluster(ThreadState::kPredecessors) != 0;
    if (at_barrier && !hopeful && kind == FailureKind::kDeadlock) kind = FailureKind::kBarrier;
  }
  return text;
}

void Engine::deadlock() const {
  FailureKind kind = FailureKind::kDeadlock;
  std::string text;
  for (const Rank& rank : ranks_) {
    for (const auto& launch : rank.launches) {
      if (!launch->complete) text += describe_stuck(*launch, kind);
    }
  }
  throw Failure(kind, fmt::format("no thread can get any further [{}]{}", sim::describe(options_), text));
}

}  // namespace commfuse::sim
