// All-reduce in one shot: every rank sends its whole input to every other rank, adds what it received and does the
// whole epilogue. A "team" is a block, or the blocks of a cluster, that handles one token at a time.
//
// Bytes per rank (N ranks, M tokens, rows of R bytes): read M R, send and receive (N - 1) M R.
// Latency: control and input load, push, arrival, poll, row sum (one barrier), store. Everything that does not depend
// on the peers (emptying, residual and weights, bookkeeping) is done while the pushes are under way.
#pragma once

#include "device/epilogue.cuh"
#include "device/gather.cuh"

namespace commfuse::device {

/// Rows that a one-shot team pushes before it waits for the first.
constexpr u32 kRowsAhead = 2;

/// One-shot, no norm: no thread needs another's vector, so the matrix is one long run of vectors.
template <class Config>
COMMFUSE_DEVICE void one_shot_flat(const AllReduceParams& params) {
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kRowVectors = Config::kHiddenSize / Elements<Config::kType>::kPerVector;
  const u64 vectors = static_cast<u64>(params.tokens) * kRowVectors;
  const u64 first = static_cast<u64>(ptx::block_index()) * Config::kThreads + ptx::thread_index();
  const u64 stride = static_cast<u64>(ptx::block_count()) * Config::kThreads;
  // The first input is on its way while the control words are read.
  Vec16 own[1] = {first < vectors ? ptx::load_weak(params.in + first) : Vec16{{0, 0, 0, 0}}};
  Call call;
  if (!call.begin(params)) return;
  const Rotation rotation(params, call);
  const bool one_each = vectors <= stride;

  const auto push = [&](u64 i, const Vec16& v) {
    const Vec16 sent = sendable(v);
    COMMFUSE_UNROLL
    for (u32 step = 1; step < kRanks; ++step) {
      const u32 to = rotation.peer<kRanks>(step);
      ptx::store_relaxed_sys(rotation.slot(to, Rotation::sender_index(params.rank, to) * vectors + i), sent);
    }
  };
  if (first < vectors) push(first, own[0]);
  if (first + stride < vectors) push(first + stride, ptx::load_weak(params.in + first + stride));
  rotation.clear_previous(call);
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();
  for (u64 i = first; i < vectors; i += stride) {
    const u64 ahead = i + kRowsAhead * stride;
    if (ahead < vectors) push(ahead, ptx::load_weak(params.in + ahead));
    if (i != first) own[0] = ptx::load_weak(params.in + i);
    own[0] = sendable(own[0]);
    Vec16 sum[1];
    const bool has[1] = {true};
    gather_sum<Config, 1>(
        params.rank, has, own,
        [&](u32 from, u32) { return rotation.own_slot(Rotation::sender_index(from, params.rank) * vectors + i); }, call,
        static_cast<u32>(i / kRowVectors), !one_each, sum);
    ptx::store_weak(params.out + i, sum[0]);
  }
  if (ptx::thread_index() == 0) call.finish(one_each ? (kRanks - 1) * vectors * kVectorBytes : 0);
}

/// One-shot with a norm: one team per token.
template <class Config>
COMMFUSE_DEVICE void one_shot_rows(const AllReduceParams& params) {
  using Epilogue = device::Epilogue<Config>;
  using Map = typename Epilogue::Map;
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kCount = Epilogue::kCount;
  const u32 team = ptx::block_index() / Config::kCluster;
  const u32 teams = ptx::block_count() / Config::kCluster;
  const u64 vectors = static_cast<u64>(params.tokens) * Epilogue::kRowVectors;

  Epilogue epilogue(params, ptx::shared_memory<typename Epilogue::Shared>());
  // The first row and its residual are on their way while the control words are read.
  Vec16 own[kCount];
  typename Epilogue::Prefetched fetched{};
  if (team < params.tokens) {
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) own[k] = epilogue.contribution(team, k);
    fetched = epilogue.prefetch(team);
  }
  Call call;
  if (!call.begin(params)) return;
  const Rotation rotation(params, call);
  const bool one_each = params.tokens <= teams;

  const auto push = [&](u32 token, u32 k, const Vec16& v) {
    const Vec16 sent = sendable(v);
    const u64 index = static_cast<u64>(token) * Epilogue::kRowVectors + Map::vector(k);
    COMMFUSE_UNROLL
    for (u32 step = 1; step < kRanks; ++step) {
      const u32 to = rotation.peer<kRanks>(step);
      if (Map::has(k))
        ptx::store_relaxed_sys(rotation.slot(to, Rotation::sender_index(params.rank, to) * vectors + index), sent);
    }
  };
  const auto push_row = [&](u32 token) {
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) push(token, k, epilogue.contribution(token, k));
  };
  if (team < params.tokens) {
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) push(team, k, own[k]);
    if (team + teams < params.tokens) push_row(team + teams);
  }
  rotation.clear_previous(call);
  epilogue.write_padding();
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();

  bool has[kCount];
  COMMFUSE_UNROLL
  for (u32 k = 0; k < kCount; ++k) has[k] = Map::has(k);
  for (u32 token = team; token < params.tokens; token += teams) {
    if (token + kRowsAhead * teams < params.tokens) push_row(token + kRowsAhead * teams);
    if (token != team) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) own[k] = epilogue.contribution(token, k);
      fetched = epilogue.prefetch(token);
    }
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) own[k] = sendable(own[k]);
    Vec16 y[kCount];
    gather_sum<Config, kCount>(
        params.rank, has, own,
        [&](u32 from, u32 k) {
          return rotation.own_slot(Rotation::sender_index(from, params.rank) * vectors +
                                   static_cast<u64>(token) * Epilogue::kRowVectors + Map::vector(k));
        },
        call, token, !one_each, y);
    const Vec16 facts = epilogue.complete_row(token, fetched, y);
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) epilogue.write(token, k, y[k], facts);
  }
  if (ptx::thread_index() == 0) call.finish(one_each ? (kRanks - 1) * vectors * kVectorBytes : 0);
}

template <class Config>
COMMFUSE_DEVICE void all_reduce_one_shot(const AllReduceParams& params) {
  static_assert(Config::kHiddenSize % Elements<Config::kType>::kPerVector == 0, "rows are multiples of 16 bytes");
  begin_kernel(params);
  if constexpr (Config::kNorm == Norm::kNone && !Config::kResidual) {
    one_shot_flat<Config>(params);
  } else {
    one_shot_rows<Config>(params);
  }
}

}  // namespace commfuse::device
