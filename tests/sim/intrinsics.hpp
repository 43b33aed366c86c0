// What ptx.hpp needs of the simulator. All functions act for the device thread that is running.
#pragma once

#include "device/types.cuh"

namespace commfuse::sim {

using device::u16;
using device::u32;
using device::u64;
using device::u8;

enum class Scope : u8 { kDevice, kSystem };

struct Coordinates {
  u32 thread, threads, block, blocks, block_of_cluster;
};
Coordinates coordinates();

enum class LoadOrder : u8 { kWeak, kRelaxed, kAcquireDevice, kAcquireSystem };

/// `bytes` is 1, 2, 4, 8 or 16.
void load(const void* address, void* value, u32 bytes, LoadOrder order);
/// `eager`: reaches memory in finite time whatever happens.
void store(void* address, const void* value, u32 bytes, bool eager);
void release(Scope scope);
void acquire(Scope scope);
void fence(Scope scope);
u32 fetch_add(u32* address, u32 v);
u32 compare_and_swap(u32* address, u32 expected, u32 desired);

u32 shuffle_xor(u32 v, u32 lane_mask);
u32 shuffle_from(u32 v, u32 lane);
void warp_barrier();
void block_barrier();
void cluster_arrive();
void cluster_wait();

/// The block's shared object; `type` identifies T.
void* shared_memory(u32 bytes, const void* type);
void store_shared_of_block(float* address, u32 block, float v);

void wait_for_predecessors();
void release_dependents();

u64 time_ns();
void spin();

}  // namespace commfuse::sim
