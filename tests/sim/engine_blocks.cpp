// When the blocks of a launch start and end.
#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/engine.hpp"

namespace commfuse::sim {

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
  cluster->number = cluster_count_++;
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
      thread.origin = Origin(launch.rank, cluster->number, block.index % shape.cluster * 1024 + i);
      thread.acquired = everything();
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

}  // namespace commfuse::sim
