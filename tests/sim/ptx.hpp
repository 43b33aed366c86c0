// templates/device/ptx.cuh for the simulator: the same functions, on the CPU. Include it before any template; its guard
// makes the template's own include empty.
#ifdef COMMFUSE_PTX_CUH
#error "include sim/ptx.hpp before the templates"
#endif
#define COMMFUSE_PTX_CUH

#include <bit>
#include <cmath>

#include "device/types.cuh"
#include "sim/float_ops.hpp"
#include "sim/intrinsics.hpp"

#define COMMFUSE_DEVICE inline
#define COMMFUSE_NO_UNROLL
#define COMMFUSE_UNROLL

namespace commfuse::device::ptx {

// ---- where am I -----------------------------------------------------------------------------------------------------

COMMFUSE_DEVICE u32 thread_index() { return sim::coordinates().thread; }
COMMFUSE_DEVICE u32 thread_count() { return sim::coordinates().threads; }
COMMFUSE_DEVICE u32 block_index() { return sim::coordinates().block; }
COMMFUSE_DEVICE u32 block_count() { return sim::coordinates().blocks; }
COMMFUSE_DEVICE u32 cluster_block_index() { return sim::coordinates().block_of_cluster; }

// ---- global memory --------------------------------------------------------------------------------------------------

template <typename T>
COMMFUSE_DEVICE T simulated_load(const T* address, sim::LoadOrder order) {
  T v;
  sim::load(address, &v, sizeof(T), order);
  return v;
}

COMMFUSE_DEVICE Vec16 load_weak(const Vec16* address) { return simulated_load(address, sim::LoadOrder::kWeak); }
COMMFUSE_DEVICE Vec16 load_streaming(const Vec16* address) { return load_weak(address); }
COMMFUSE_DEVICE u32 load_weak(const u32* address) { return simulated_load(address, sim::LoadOrder::kWeak); }
COMMFUSE_DEVICE u64 load_weak(const u64* address) { return simulated_load(address, sim::LoadOrder::kWeak); }
COMMFUSE_DEVICE float load_weak(const float* address) { return simulated_load(address, sim::LoadOrder::kWeak); }
COMMFUSE_DEVICE void store_weak(Vec16* address, const Vec16& v) { sim::store(address, &v, 16, false); }
COMMFUSE_DEVICE void store_streaming(Vec16* address, const Vec16& v) { store_weak(address, v); }
COMMFUSE_DEVICE void store_weak(u64* address, u64 v) { sim::store(address, &v, 8, false); }
COMMFUSE_DEVICE void store_weak(u32* address, u32 v) { sim::store(address, &v, 4, false); }
COMMFUSE_DEVICE void store_weak(float* address, float v) { sim::store(address, &v, 4, false); }
COMMFUSE_DEVICE void store_weak(u16* address, u16 v) { sim::store(address, &v, 2, false); }
COMMFUSE_DEVICE void store_weak(u8* address, u8 v) { sim::store(address, &v, 1, false); }

COMMFUSE_DEVICE Vec16 load_relaxed_sys(const Vec16* address) {
  return simulated_load(address, sim::LoadOrder::kRelaxed);
}
COMMFUSE_DEVICE u32 load_relaxed_sys(const u32* address) { return simulated_load(address, sim::LoadOrder::kRelaxed); }
COMMFUSE_DEVICE u32 load_acquire_sys(const u32* address) {
  return simulated_load(address, sim::LoadOrder::kAcquireSystem);
}
COMMFUSE_DEVICE u64 load_relaxed_sys(const u64* address) { return simulated_load(address, sim::LoadOrder::kRelaxed); }
COMMFUSE_DEVICE i64 load_acquire_sys(const i64* address) {
  return simulated_load(address, sim::LoadOrder::kAcquireSystem);
}
COMMFUSE_DEVICE void store_relaxed_sys(Vec16* address, const Vec16& v) { sim::store(address, &v, 16, true); }
COMMFUSE_DEVICE void store_relaxed_sys(u32* address, u32 v) { sim::store(address, &v, 4, true); }
COMMFUSE_DEVICE void store_relaxed_sys(u64* address, u64 v) { sim::store(address, &v, 8, true); }
COMMFUSE_DEVICE void store_release_sys(u32* address, u32 v) {
  sim::release(sim::Scope::kSystem);
  sim::store(address, &v, 4, true);
}
COMMFUSE_DEVICE void store_release_sys(i64* address, i64 v) {
  sim::release(sim::Scope::kSystem);
  sim::store(address, &v, 8, true);
}

COMMFUSE_DEVICE void add_relaxed_gpu(u32* address, u32 v) { sim::fetch_add(address, v); }
COMMFUSE_DEVICE void add_release_gpu(u32* address, u32 v) {
  sim::release(sim::Scope::kDevice);
  sim::fetch_add(address, v);
}
COMMFUSE_DEVICE u32 fetch_add_relaxed_gpu(u32* address, u32 v) { return sim::fetch_add(address, v); }
COMMFUSE_DEVICE u32 fetch_add_acq_rel_gpu(u32* address, u32 v) {
  sim::release(sim::Scope::kDevice);
  const u32 old = sim::fetch_add(address, v);
  sim::acquire(sim::Scope::kDevice);
  return old;
}
COMMFUSE_DEVICE u32 load_acquire_gpu(const u32* address) {
  return simulated_load(address, sim::LoadOrder::kAcquireDevice);
}
COMMFUSE_DEVICE u32 compare_and_swap_sys(u32* address, u32 expected, u32 desired) {
  return sim::compare_and_swap(address, expected, desired);
}
COMMFUSE_DEVICE void fence_sys() { sim::fence(sim::Scope::kSystem); }
COMMFUSE_DEVICE void fence_gpu() { sim::fence(sim::Scope::kDevice); }

// ---- threads of a warp, a block, a cluster --------------------------------------------------------------------------

COMMFUSE_DEVICE u32 shuffle_xor(u32 v, u32 lane_mask) { return sim::shuffle_xor(v, lane_mask); }
COMMFUSE_DEVICE float shuffle_xor(float v, u32 lane_mask) {
  return std::bit_cast<float>(sim::shuffle_xor(std::bit_cast<u32>(v), lane_mask));
}
COMMFUSE_DEVICE bool any_lane(bool yes) {
  u32 any = yes ? 1 : 0;
  for (u32 distance = 16; distance > 0; distance /= 2) any |= shuffle_xor(any, distance);
  return any != 0;
}
COMMFUSE_DEVICE u32 shuffle_from(u32 v, u32 lane) { return sim::shuffle_from(v, lane); }
COMMFUSE_DEVICE void warp_barrier() { sim::warp_barrier(); }
COMMFUSE_DEVICE void block_barrier() { sim::block_barrier(); }
COMMFUSE_DEVICE void cluster_arrive() { sim::cluster_arrive(); }
COMMFUSE_DEVICE void cluster_wait() { sim::cluster_wait(); }
COMMFUSE_DEVICE void cluster_barrier() {
  sim::cluster_arrive();
  sim::cluster_wait();
}

template <typename T>
COMMFUSE_DEVICE T& shared_memory() {
  static const char type = 0;  // its address names T
  return *static_cast<T*>(sim::shared_memory(sizeof(T), &type));
}
COMMFUSE_DEVICE void store_shared_of_block(float* address, u32 block, float v) {
  sim::store_shared_of_block(address, block, v);
}

// ---- programmatic dependent launch ----------------------------------------------------------------------------------

COMMFUSE_DEVICE void wait_for_predecessors() { sim::wait_for_predecessors(); }
COMMFUSE_DEVICE void release_dependents() { sim::release_dependents(); }

// ---- time -----------------------------------------------------------------------------------------------------------

COMMFUSE_DEVICE u64 time_ns() { return sim::time_ns(); }
COMMFUSE_DEVICE void spin() { sim::spin(); }

// ---- arithmetic -----------------------------------------------------------------------------------------------------

COMMFUSE_DEVICE float add_rn(float a, float b) { return sim::canonical(a + b); }
COMMFUSE_DEVICE float mul_rn(float a, float b) { return sim::canonical(a * b); }
COMMFUSE_DEVICE float fma_rn(float a, float b, float c) { return sim::canonical(__builtin_fmaf(a, b, c)); }
COMMFUSE_DEVICE float div_rn(float a, float b) { return sim::canonical(a / b); }
COMMFUSE_DEVICE float sqrt_rn(float a) { return sim::canonical(std::sqrt(a)); }
COMMFUSE_DEVICE float max_number(float a, float b) { return sim::max_number(a, b); }
COMMFUSE_DEVICE u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }
COMMFUSE_DEVICE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }
COMMFUSE_DEVICE u32 bits_of(float v) { return std::bit_cast<u32>(v); }
COMMFUSE_DEVICE float float_of(u32 bits) { return std::bit_cast<float>(bits); }

COMMFUSE_DEVICE float half_to_float(u16 bits) { return sim::half_to_float(bits); }
COMMFUSE_DEVICE u32 floats_to_half2(float low, float high) {
  return static_cast<u32>(sim::float_to_half(high)) << 16 | sim::float_to_half(low);
}
COMMFUSE_DEVICE u32 floats_to_bfloat2(float low, float high) {
  return static_cast<u32>(sim::float_to_bfloat(high)) << 16 | sim::float_to_bfloat(low);
}

}  // namespace commfuse::device::ptx
