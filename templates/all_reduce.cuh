// All-reduce, one-shot: every rank sends its whole input to every other rank, and each rank adds what it received.
//
// Bytes that a rank moves (N ranks, M tokens, row of R bytes): it reads its input (M R, and again from cache), writes
// (N - 1) M R into the peers, reads (N - 1) M R that arrived, and empties as much of the buffer of the call before. The
// latency chain is: control and input load, push, arrival at the peer, poll, sum (and row sum, one barrier), store.
// Everything that does not depend on the peers (emptying, residual and gamma loads, the bookkeeping of the call) is
// done while the pushes are under way.
#pragma once

#include "device/epilogue.cuh"
#include "device/rotation.cuh"

namespace commfuse::device {

/// Sends and receives vectors by their index in the M x R matrix.
template <class Config>
class OneShot {
 public:
  static constexpr u32 kRanks = Config::kWorldSize;
  using Sum = Fold<Config::kType, Config::kFp32Accumulate>;

  /// Vectors received per thread and round of loads: more hide more latency, but cost four registers each.
  static constexpr u32 kInFlight = 16;

  COMMFUSE_DEVICE OneShot(const AllReduceParams& params, Call& call, u64 matrix_vectors)
      : params_(params), call_(call), rotation_(params, call), matrix_vectors_(matrix_vectors) {}

  COMMFUSE_DEVICE void clear_previous() const { rotation_.clear_previous(call_); }

  COMMFUSE_DEVICE void push(u64 index, const Vec16& v) const {
    const Vec16 sent = sendable(v);
    COMMFUSE_UNROLL
    for (u32 step = 1; step < kRanks; ++step) {
      const u32 to = params_.rank + step < kRanks ? params_.rank + step : params_.rank + step - kRanks;
      ptx::store_relaxed_sys(rotation_.slot(to, slot_of(params_.rank, to) + index), sent);
    }
  }

  /// The sums of kCount vectors: `own[k]` and what every peer sent for index[k]. Vectors with !has[k] are left out.
  template <u32 kCount>
  COMMFUSE_DEVICE void sum(const u64 (&index)[kCount], const bool (&has)[kCount], const Vec16 (&own)[kCount], u32 token,
                           Vec16 (&result)[kCount]) {
    constexpr u32 kChunk = kInFlight / kCount < 1 ? 1 : (kInFlight / kCount < kRanks ? kInFlight / kCount : kRanks);
    Sum fold[kCount];
    COMMFUSE_UNROLL
    for (u32 base = 0; base < kRanks; base += kChunk) {
      Vec16 v[kCount][kChunk];
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        COMMFUSE_UNROLL
        for (u32 j = 0; j < kChunk && base + j < kRanks; ++j) {
          v[k][j] = own[k];
          if (base + j != params_.rank && has[k]) v[k][j] = receive(base + j, index[k]);
        }
      }
      for (u32 rounds = 0;;) {
        u32 missing = kRanks;
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          COMMFUSE_UNROLL
          for (u32 j = 0; j < kChunk && base + j < kRanks; ++j) {
            if (!has_arrived(v[k][j])) missing = base + j;
          }
        }
        if (missing == kRanks || call_.should_give_up(rounds, missing, token)) break;
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          COMMFUSE_UNROLL
          for (u32 j = 0; j < kChunk && base + j < kRanks; ++j) {
            if (!has_arrived(v[k][j])) v[k][j] = receive(base + j, index[k]);
          }
        }
      }
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        COMMFUSE_UNROLL
        for (u32 j = 0; j < kChunk && base + j < kRanks; ++j) {
          if (base + j == 0) {
            fold[k].first(v[k][j]);
          } else {
            fold[k].next(v[k][j]);
          }
        }
      }
    }
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) result[k] = fold[k].sum();
  }

  /// What the peers write into our buffer in this call.
  COMMFUSE_DEVICE u64 dirty_bytes() const { return (kRanks - 1) * matrix_vectors_ * kVectorBytes; }

 private:
  /// A rank keeps no slot for its own input, which stays in registers.
  COMMFUSE_DEVICE u64 slot_of(u32 from, u32 to) const { return (from < to ? from : from - 1) * matrix_vectors_; }
  COMMFUSE_DEVICE Vec16 receive(u32 from, u64 index) const {
    return ptx::load_relaxed_sys(rotation_.slot(params_.rank, slot_of(from, params_.rank) + index));
  }

  const AllReduceParams& params_;
  Call& call_;
  Rotation rotation_;
  u64 matrix_vectors_;
};

/// Pattern all_reduce: no thread needs another's vector, so the matrix is one long run of vectors.
template <class Config>
COMMFUSE_DEVICE void all_reduce_flat(const AllReduceParams& params, OneShot<Config>& shot, Call& call, u64 vectors) {
  const u64 first = static_cast<u64>(ptx::block_index()) * Config::kThreads + ptx::thread_index();
  const u64 stride = static_cast<u64>(ptx::block_count()) * Config::kThreads;
  for (u64 i = first; i < vectors; i += stride) shot.push(i, ptx::load_weak(params.in + i));
  shot.clear_previous();
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();
  for (u64 i = first; i < vectors; i += stride) {
    const u64 index[1] = {i};
    const bool has[1] = {true};
    const Vec16 own[1] = {sendable(ptx::load_weak(params.in + i))};
    Vec16 result[1];
    constexpr u32 kRowVectors = Config::kHiddenSize / Elements<Config::kType>::kPerVector;
    shot.sum(index, has, own, static_cast<u32>(i / kRowVectors), result);
    ptx::store_weak(params.out + i, result[0]);
  }
}

/// Patterns with a norm: one team (a block, or a cluster) per token.
template <class Config>
COMMFUSE_DEVICE void all_reduce_rows(const AllReduceParams& params, OneShot<Config>& shot, Call& call) {
  constexpr u32 kRowVectors = Config::kHiddenSize / Elements<Config::kType>::kPerVector;
  using Map = RowMap<kRowVectors, Config::kThreads, Config::kCluster>;
  constexpr u32 kCount = Map::kPerThread;
  const u32 team = ptx::block_index() / Config::kCluster;
  const u32 teams = ptx::block_count() / Config::kCluster;
  auto& shared = ptx::shared_memory<RowSumShared<Map>>();

  for (u32 token = team; token < params.tokens; token += teams) {
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      const u64 index = static_cast<u64>(token) * kRowVectors + Map::vector(k);
      if (Map::has(k)) shot.push(index, ptx::load_weak(params.in + index));
    }
  }
  const Vec16* gamma_in = static_cast<const Vec16*>(params.gamma);
  const Vec16 zero = {{0, 0, 0, 0}};
  Vec16 gamma[kCount];
  COMMFUSE_UNROLL
  for (u32 k = 0; k < kCount; ++k) gamma[k] = Map::has(k) ? ptx::load_weak(gamma_in + Map::vector(k)) : zero;
  shot.clear_previous();
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();

  u32 row = 0;
  for (u32 token = team; token < params.tokens; token += teams, ++row) {
    u64 index[kCount];
    bool has[kCount];
    Vec16 own[kCount];
    Vec16 residual[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      has[k] = Map::has(k);
      index[k] = static_cast<u64>(token) * kRowVectors + Map::vector(k);
      own[k] = has[k] ? sendable(ptx::load_weak(params.in + index[k])) : zero;
      residual[k] = has[k] ? ptx::load_weak(params.residual_in + index[k]) : zero;
    }
    Vec16 y[kCount];
    shot.sum(index, has, own, token, y);
    float squares[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      y[k] = add<Config::kType>(y[k], residual[k]);
      squares[k] = has[k] ? sum_of_squares<Config::kType>(y[k]) : 0.0f;
      if (has[k]) ptx::store_weak(params.residual_out + index[k], y[k]);
    }
    const float inverse =
        inverse_rms<Config::kHiddenSize>(row_sum<Map, Config::kCluster>(squares, row, shared), params.eps);
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      if (has[k]) ptx::store_weak(params.norm_out + index[k], normalised<Config::kType>(y[k], inverse, gamma[k]));
    }
  }
}

template <class Config>
COMMFUSE_DEVICE void all_reduce_one_shot(const AllReduceParams& params) {
  static_assert(Config::kHiddenSize % Elements<Config::kType>::kPerVector == 0, "rows are multiples of 16 bytes");
  // Nothing is read before this line: inputs, residual, weights and control words may all be written by the kernels
  // before.
  ptx::wait_for_predecessors();
  // A dependent waits for our completion before it touches data, so it may start at once; without the flag it starts
  // when this grid ends.
  if (params.flags & kTriggerEarly) ptx::release_dependents();
  Call call;
  if (!call.begin(params)) return;
  const u64 vectors = static_cast<u64>(params.tokens) * (Config::kHiddenSize / Elements<Config::kType>::kPerVector);
  OneShot<Config> shot(params, call, vectors);
  if constexpr (Config::kPattern == Pattern::kAllReduce) {
    all_reduce_flat(params, shot, call, vectors);
  } else {
    all_reduce_rows(params, shot, call);
  }
  if (ptx::thread_index() == 0) call.finish(shot.dirty_bytes());
}

}  // namespace commfuse::device
