// Every device intrinsic that commfuse uses, and nothing else: no other file under templates/ writes inline assembly,
// threadIdx or __shared__. The simulator defines COMMFUSE_PTX_CUH and supplies the same functions on the CPU
// (tests/sim/ptx.hpp), so what is added here is added there.
//
// Floating point: functions named *_rn round to nearest even, keep subnormals and are never contracted or
// approximated, so a CPU computes the same bits. Their NaN results are canonical (0x7fffffff).
#ifndef COMMFUSE_PTX_CUH
#define COMMFUSE_PTX_CUH

#include "device/types.cuh"

#define COMMFUSE_DEVICE __device__ __forceinline__
#define COMMFUSE_UNROLL _Pragma("unroll")
#define COMMFUSE_NO_UNROLL _Pragma("unroll 1")

namespace commfuse::device::ptx {

// ---- where am I -----------------------------------------------------------------------------------------------------

COMMFUSE_DEVICE u32 thread_index() { return threadIdx.x; }
COMMFUSE_DEVICE u32 thread_count() { return blockDim.x; }
COMMFUSE_DEVICE u32 block_index() { return blockIdx.x; }
COMMFUSE_DEVICE u32 block_count() { return gridDim.x; }

/// Rank of this block in its cluster; 0 where clusters do not exist (before sm_90).
COMMFUSE_DEVICE u32 cluster_block_index() {
#if __CUDA_ARCH__ >= 900
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// ---- global memory --------------------------------------------------------------------------------------------------
// "weak" accesses are ordinary: only this kernel's own ordering applies. "relaxed_sys" accesses are single-copy atomic
// per 32-bit word and are seen by every GPU and the host; a 16-byte one may be seen word by word.

COMMFUSE_DEVICE Vec16 load_weak(const Vec16* address) {
  Vec16 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(address)
               : "memory");
  return v;
}
/// For data that this kernel reads once: makes room for the rotation buffers in the caches.
COMMFUSE_DEVICE Vec16 load_streaming(const Vec16* address) {
  Vec16 v;
  asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(address)
               : "memory");
  return v;
}
COMMFUSE_DEVICE u32 load_weak(const u32* address) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}
COMMFUSE_DEVICE u64 load_weak(const u64* address) {
  u64 v;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
  return v;
}
COMMFUSE_DEVICE float load_weak(const float* address) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(address) : "memory");
  return v;
}
COMMFUSE_DEVICE void store_weak(Vec16* address, const Vec16& v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
               "r"(v.word[3])
               : "memory");
}
/// For results that this kernel does not read again.
COMMFUSE_DEVICE void store_streaming(Vec16* address, const Vec16& v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}
COMMFUSE_DEVICE void store_weak(u64* address, u64 v) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
}
COMMFUSE_DEVICE void store_weak(u32* address, u32 v) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
COMMFUSE_DEVICE void store_weak(float* address, float v) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(address), "f"(v) : "memory");
}
COMMFUSE_DEVICE void store_weak(u16* address, u16 v) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(v) : "memory");
}
COMMFUSE_DEVICE void store_weak(u8* address, u8 v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(static_cast<u32>(v)) : "memory");
}

COMMFUSE_DEVICE Vec16 load_relaxed_sys(const Vec16* address) {
  Vec16 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(address)
               : "memory");
  return v;
}
COMMFUSE_DEVICE u32 load_relaxed_sys(const u32* address) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}
COMMFUSE_DEVICE u32 load_acquire_sys(const u32* address) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}
COMMFUSE_DEVICE u64 load_relaxed_sys(const u64* address) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
  return v;
}
COMMFUSE_DEVICE i64 load_acquire_sys(const i64* address) {
  i64 v;
  asm volatile("ld.acquire.sys.global.s64 %0, [%1];" : "=l"(v) : "l"(address) : "memory");
  return v;
}
COMMFUSE_DEVICE void store_relaxed_sys(Vec16* address, const Vec16& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}
COMMFUSE_DEVICE void store_relaxed_sys(u32* address, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
COMMFUSE_DEVICE void store_relaxed_sys(u64* address, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
}
COMMFUSE_DEVICE void store_release_sys(u32* address, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
COMMFUSE_DEVICE void store_release_sys(i64* address, i64 v) {
  asm volatile("st.release.sys.global.s64 [%0], %1;" ::"l"(address), "l"(v) : "memory");
}

/// Adds without waiting for the old value.
COMMFUSE_DEVICE void add_relaxed_gpu(u32* address, u32 v) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
COMMFUSE_DEVICE void add_release_gpu(u32* address, u32 v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}
/// Adds and returns the value before; orders nothing.
COMMFUSE_DEVICE u32 fetch_add_relaxed_gpu(u32* address, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(v) : "memory");
  return old;
}
/// Adds and returns the value before, ordering this thread's accesses on both sides.
COMMFUSE_DEVICE u32 fetch_add_acq_rel_gpu(u32* address, u32 v) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(v) : "memory");
  return old;
}
COMMFUSE_DEVICE u32 load_acquire_gpu(const u32* address) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}
/// Stores `desired` if the word holds `expected`; returns what it held.
COMMFUSE_DEVICE u32 compare_and_swap_sys(u32* address, u32 expected, u32 desired) {
  u32 old;
  asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(address), "r"(expected), "r"(desired)
               : "memory");
  return old;
}
COMMFUSE_DEVICE void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
COMMFUSE_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- threads of a warp, a block, a cluster --------------------------------------------------------------------------

/// Whether any of the 32 lanes says yes; every lane of the warp must call it.
COMMFUSE_DEVICE bool any_lane(bool yes) {
  u32 any;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.any.pred q, p, 0xffffffff;\n\t"
      "selp.u32 %0, 1, 0, q;\n\t}"
      : "=r"(any)
      : "r"(static_cast<u32>(yes))
      : "memory");
  return any != 0;
}

/// Butterfly over all 32 lanes; every lane of the warp must call it.
COMMFUSE_DEVICE float shuffle_xor(float v, u32 lane_mask) {
  float out;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(out) : "f"(v), "r"(lane_mask));
  return out;
}
COMMFUSE_DEVICE u32 shuffle_xor(u32 v, u32 lane_mask) {
  u32 out;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(out) : "r"(v), "r"(lane_mask));
  return out;
}
/// The value of `lane`, given to all 32 lanes.
COMMFUSE_DEVICE u32 shuffle_from(u32 v, u32 lane) {
  u32 out;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(out) : "r"(v), "r"(lane));
  return out;
}
COMMFUSE_DEVICE void warp_barrier() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
COMMFUSE_DEVICE void block_barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

/// Barrier of all threads of the cluster; orders shared memory of all its blocks. sm_90 and later.
COMMFUSE_DEVICE void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  block_barrier();
#endif
}
COMMFUSE_DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
COMMFUSE_DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// The block's shared memory, seen as one object of type T (uninitialised). One type per kernel.
template <typename T>
COMMFUSE_DEVICE T& shared_memory() {
  __shared__ T object;
  return object;
}
/// Stores into the same object of block `block` of this cluster. `address` lies in this block's shared_memory().
COMMFUSE_DEVICE void store_shared_of_block(float* address, u32 block, float v) {
#if __CUDA_ARCH__ >= 900
  u64 generic = reinterpret_cast<u64>(address);
  asm volatile(
      "{\n\t.reg .u64 s;\n\t.reg .u32 a, b;\n\t"
      "cvta.to.shared.u64 s, %0;\n\tcvt.u32.u64 a, s;\n\tmapa.shared::cluster.u32 b, a, %1;\n\t"
      "st.shared::cluster.f32 [b], %2;\n\t}" ::"l"(generic),
      "r"(block), "f"(v)
      : "memory");
#else
  *address = v;
#endif
}

// ---- programmatic dependent launch ----------------------------------------------------------------------------------

/// Returns when the kernels this one depends on have completed and their writes are visible.
COMMFUSE_DEVICE void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the dependent kernel start (it still waits for this one's completion before touching data).
COMMFUSE_DEVICE void release_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- time -----------------------------------------------------------------------------------------------------------

/// Nanoseconds of a clock that all blocks share; ticks coarsely (about 1 us).
COMMFUSE_DEVICE u64 time_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
/// Called in every round of a polling loop that found nothing. Nothing on the GPU; the simulator switches threads.
COMMFUSE_DEVICE void spin() {}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

COMMFUSE_DEVICE float add_rn(float a, float b) {
  float r;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
COMMFUSE_DEVICE float mul_rn(float a, float b) {
  float r;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
COMMFUSE_DEVICE float fma_rn(float a, float b, float c) {
  float r;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
  return r;
}
COMMFUSE_DEVICE float div_rn(float a, float b) {
  float r;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
COMMFUSE_DEVICE float sqrt_rn(float a) {
  float r;
  asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
/// The larger; a NaN operand loses against a number, two NaNs give NaN.
COMMFUSE_DEVICE float max_number(float a, float b) {
  float r;
  asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
COMMFUSE_DEVICE u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }
COMMFUSE_DEVICE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }
COMMFUSE_DEVICE u32 bits_of(float v) { return __float_as_uint(v); }
COMMFUSE_DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }

/// fp16 <-> fp32. The narrowing rounds to nearest even; overflow gives infinity, NaN gives 0x7fff.
COMMFUSE_DEVICE float half_to_float(u16 bits) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
  return r;
}
/// Two values narrowed at once: `low` in bits 0-15, `high` in bits 16-31.
COMMFUSE_DEVICE u32 floats_to_half2(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
/// As floats_to_half2, for bfloat16 (widening is a shift: see formats.cuh).
COMMFUSE_DEVICE u32 floats_to_bfloat2(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Conversions that only some architectures have an instruction for. They exist where the macro beside them is defined;
// quant_formats.cuh has the same in software for the others (the simulator defines neither).

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define COMMFUSE_CONVERTS_E4M3
/// FP8 E4M3, nearest even, saturating to +-448, NaN gives 0x7f: `low` in bits 0-7, `high` in bits 8-15.
COMMFUSE_DEVICE u32 floats_to_e4m3x2(float low, float high) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
#endif

// The family-specific and architecture-specific targets of sm_100 to sm_12x; which macro says so depends on the
// compiler's version.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM101_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM103_ALL) || defined(__CUDA_ARCH_FEAT_SM110_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000)
#define COMMFUSE_CONVERTS_E2M1
/// FP4 E2M1, nearest even, saturating to +-6, NaN gives +6: v[i] in bits 4 i to 4 i + 3.
COMMFUSE_DEVICE u32 floats_to_e2m1x8(const float (&v)[8]) {
  u32 r;
  asm("{\n\t.reg .b8 a, b, c, d;\n\t"
      "cvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\n\tcvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n\t"
      "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\n\tcvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\n\t"
      "mov.b32 %0, {a, b, c, d};\n\t}"
      : "=r"(r)
      : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
  return r;
}
#endif

}  // namespace commfuse::device::ptx

#endif  // COMMFUSE_PTX_CUH
