#include "sim/intrinsics.hpp"

#include "sim/engine.hpp"

namespace commfuse::sim {
namespace {

Thread& running() {
  if (current_thread == nullptr)
    throw Failure(FailureKind::kUsage, "device function called outside a simulated kernel");
  return *current_thread;
}

}  // namespace

Coordinates coordinates() {
  const Thread& thread = running();
  const LaunchShape& shape = thread.block->cluster->launch->shape;
  return {thread.index, shape.threads, thread.block->index, shape.blocks, thread.block->index % shape.cluster};
}

void load(const void* address, void* value, u32 bytes, LoadOrder order) {
  Thread& thread = running();
  thread.engine->load(thread, address, value, bytes, order);
}
void store(void* address, const void* value, u32 bytes, bool eager) {
  Thread& thread = running();
  thread.engine->store(thread, address, value, bytes, eager);
}
void release(Scope scope) {
  Thread& thread = running();
  thread.engine->release(thread, scope);
}
void acquire(Scope scope) {
  Thread& thread = running();
  thread.engine->acquire(thread, scope);
}
void fence(Scope scope) {
  Thread& thread = running();
  thread.engine->release(thread, scope);
  thread.engine->acquire(thread, scope);
}
u32 fetch_add(u32* address, u32 v) {
  Thread& thread = running();
  return thread.engine->atomic(thread, address, [v](u32 old) { return old + v; });
}
u32 compare_and_swap(u32* address, u32 expected, u32 desired) {
  Thread& thread = running();
  return thread.engine->atomic(thread, address, [=](u32 old) { return old == expected ? desired : old; });
}

u32 shuffle_xor(u32 v, u32 lane_mask) {
  Thread& thread = running();
  return thread.engine->warp_exchange(thread, WarpOperation::kShuffleXor, v, lane_mask);
}
u32 shuffle_from(u32 v, u32 lane) {
  Thread& thread = running();
  return thread.engine->warp_exchange(thread, WarpOperation::kShuffleFrom, v, lane);
}
void warp_barrier() {
  Thread& thread = running();
  thread.engine->warp_barrier(thread);
}
void block_barrier() {
  Thread& thread = running();
  thread.engine->block_barrier(thread);
}
void cluster_arrive() {
  Thread& thread = running();
  thread.engine->cluster_arrive(thread);
}
void cluster_wait() {
  Thread& thread = running();
  thread.engine->cluster_wait(thread);
}

void* shared_memory(u32 bytes, const void* type) {
  Thread& thread = running();
  return thread.engine->shared_memory(thread, bytes, type);
}
void store_shared_of_block(float* address, u32 block, float v) {
  Thread& thread = running();
  thread.engine->store_shared_of_block(thread, address, block, v);
}

void wait_for_predecessors() {
  Thread& thread = running();
  thread.engine->wait_for_predecessors(thread);
}
void release_dependents() {
  Thread& thread = running();
  thread.engine->release_dependents(thread);
}

u64 time_ns() { return running().engine->clock() / 1024 * 1024; }
void spin() {
  Thread& thread = running();
  thread.engine->spin(thread);
}

}  // namespace commfuse::sim
