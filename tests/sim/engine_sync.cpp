// Warps, barriers, shared memory, dependent launches.
#include <fmt/format.h>

#include <cstring>

#include "sim/engine.hpp"

namespace commfuse::sim {
namespace {

const char* name_of(WarpOperation operation) {
  switch (operation) {
    case WarpOperation::kNone:
      break;
    case WarpOperation::kShuffleXor:
      return "shuffle_xor";
    case WarpOperation::kShuffleFrom:
      return "shuffle_from";
    case WarpOperation::kBarrier:
      return "warp_barrier";
  }
  return "nothing";
}

}  // namespace

u32 Engine::warp_exchange(Thread& thread, WarpOperation operation, u32 value, u32 argument) {
  Warp& warp = thread.block->warps[thread.index / kWarpSize];
  const u32 lane = thread.index % kWarpSize;
  if (warp.exited != 0) {
    throw Failure(FailureKind::kMissingLane,
                  fmt::format("{} without the lanes {:#010x} of warp {}, which have exited or do not exist",
                              name_of(operation), warp.exited, thread.index / kWarpSize));
  }
  if (warp.arrived != 0 && warp.operation != operation) {
    throw Failure(FailureKind::kMissingLane,
                  fmt::format("{} while the lanes {:#010x} of warp {} are at {}", name_of(operation), warp.arrived,
                              thread.index / kWarpSize, name_of(warp.operation)));
  }
  warp.operation = operation;
  warp.value[lane] = value;
  warp.argument[lane] = argument % kWarpSize;
  warp.arrived |= 1u << lane;
  if (warp.arrived != 0xffffffffu) {
    yield(thread, ThreadState::kShuffle);
    return warp.result[lane];
  }
  for (u32 i = 0; i < kWarpSize; ++i) {
    warp.result[i] = warp.value[operation == WarpOperation::kShuffleXor ? i ^ warp.argument[i] : warp.argument[i]];
  }
  warp.arrived = 0;
  Thread* first = &thread - lane;
  for (u32 i = 0; i < kWarpSize; ++i) {
    if (i != lane) wake(first[i]);
  }
  return warp.result[lane];
}

void Engine::warp_barrier(Thread& thread) {
  Block& block = *thread.block;
  move(thread.pending, block.ordered);
  block.acquired.merge(thread.acquired);
  warp_exchange(thread, WarpOperation::kBarrier, 0, 0);
  thread.acquired.merge(block.acquired);
  thread.acquired.from_cluster = steps_;
}

void Engine::block_barrier(Thread& thread) {
  Block& block = *thread.block;
  move(thread.pending, block.ordered);
  block.acquired.merge(thread.acquired);
  ++block.at_barrier;
  if (block.at_barrier == block.live) {
    open_block_barrier(block, &thread);
  } else {
    yield(thread, ThreadState::kBlockBarrier);
  }
  thread.acquired.merge(block.acquired);
  thread.acquired.from_cluster = steps_;
}

void Engine::open_block_barrier(Block& block, const Thread* last) {
  block.at_barrier = 0;
  for (u32 i = 0; i < block.cluster->launch->shape.threads; ++i) {
    Thread& thread = block.threads[i];
    if (&thread != last && thread.state == ThreadState::kBlockBarrier) wake(thread);
  }
}

void Engine::cluster_arrive(Thread& thread) {
  Cluster& cluster = *thread.block->cluster;
  if (thread.cluster_arrived) {
    throw Failure(FailureKind::kBarrier, "cluster_arrive twice without cluster_wait between");
  }
  move(thread.block->ordered, cluster.ordered);
  move(thread.pending, cluster.ordered);
  cluster.acquired.merge(thread.acquired);
  thread.cluster_arrived = true;
  thread.cluster_phase = cluster.phase;
  if (++cluster.arrived == cluster.live) open_cluster_barrier(cluster);
}

void Engine::open_cluster_barrier(Cluster& cluster) {
  cluster.arrived = 0;
  ++cluster.phase;
  for (Block& block : cluster.blocks) {
    for (u32 i = 0; i < cluster.launch->shape.threads; ++i) {
      if (block.threads[i].state == ThreadState::kClusterBarrier) wake(block.threads[i]);
    }
  }
}

void Engine::cluster_wait(Thread& thread) {
  if (!thread.cluster_arrived) throw Failure(FailureKind::kBarrier, "cluster_wait without cluster_arrive before");
  if (thread.block->cluster->phase == thread.cluster_phase) yield(thread, ThreadState::kClusterBarrier);
  thread.cluster_arrived = false;
  thread.acquired.merge(thread.block->cluster->acquired);
  thread.acquired.from_cluster = steps_;
}

void* Engine::shared_memory(Thread& thread, u32 bytes, const void* type) {
  constexpr size_t kAlignment = 128;
  Block& block = *thread.block;
  if (block.shared_type == nullptr) {
    block.shared_storage = std::make_unique<std::byte[]>(bytes + kAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(block.shared_storage.get());
    block.shared = block.shared_storage.get() + (kAlignment - address % kAlignment);
    std::memset(block.shared, 0xcd, bytes);
    block.shared_type = type;
    block.shared_bytes = bytes;
  }
  if (block.shared_type != type)
    throw Failure(FailureKind::kSharedMemory, "shared_memory() of two types in one kernel");
  return block.shared;
}

void Engine::store_shared_of_block(Thread& thread, float* address, u32 block, float v) {
  Cluster& cluster = *thread.block->cluster;
  if (block >= cluster.blocks.size()) {
    throw Failure(FailureKind::kSharedMemory,
                  fmt::format("store into shared memory of block {} of a cluster of {}", block, cluster.blocks.size()));
  }
  const auto offset = static_cast<size_t>(reinterpret_cast<std::byte*>(address) - thread.block->shared);
  if (thread.block->shared == nullptr || offset + sizeof v > thread.block->shared_bytes || offset % sizeof v != 0) {
    throw Failure(FailureKind::kSharedMemory,
                  "store_shared_of_block() of an address outside this block's shared memory");
  }
  Block& target = cluster.blocks[block];
  if (!target.started || target.live == 0) {
    throw Failure(
        FailureKind::kSharedMemory,
        fmt::format("store into shared memory of block {} of the cluster, which {}: a cluster barrier must lie between",
                    block, target.started ? "has exited" : "may not have started"));
  }
  if (target.shared == nullptr) {
    shared_memory(target.threads[0], thread.block->shared_bytes, thread.block->shared_type);
  }
  std::memcpy(target.shared + offset, &v, sizeof v);
}

void Engine::wait_for_predecessors(Thread& thread) {
  Launch& launch = *thread.block->cluster->launch;
  if (launch.previous != nullptr) {
    launch.previous->waiting_for_this.push_back(&thread);
    yield(thread, ThreadState::kPredecessors);
  }
  thread.acquired = everything();
}

void Engine::release_dependents(Thread& thread) {
  Block& block = *thread.block;
  if (block.released_dependents) return;
  block.released_dependents = true;
  ++block.cluster->launch->released_blocks;
  admission_due_ = true;
}

}  // namespace commfuse::sim
