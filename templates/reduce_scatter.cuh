// Reduce-scatter: every rank sends each row to the rank that owns it, which adds what it received and does the whole
// epilogue (epilogue.cuh) on its own rows. A "team" is a block, or the blocks of a cluster, that handles one own row at
// a time.
//
// There is one phase, so nothing corresponds to one-shot and two-shot; what differs is how a call empties its buffer.
// With at most one row for each team all rows are sent first and the next call empties them, off its critical path.
// With more, a team sends two rows ahead of the one that it waits for and empties each slot as it has read it.
//   Bytes per rank (N ranks, M tokens in even runs, rows of R bytes): read M R, send and receive (N - 1)/N M R.
//
// Why no team waits for ever (all teams of all ranks being resident together: planner): a team sends its part of row w
// of every run before it waits for row w of its own. Take the smallest w that any team waits for; what it lacks is sent
// by a team that has yet to send a row w, hence one that waits for a smaller one, or for nothing. Ranks may have
// different numbers of teams and of rows.
#pragma once

#include "device/epilogue.cuh"
#include "device/gather.cuh"
#include "device/greeting.cuh"
#include "device/row_runs.cuh"

namespace commfuse::device {

/// Rows that a team sends before it waits for the first.
constexpr u32 kScatterAhead = 2;

/// Where contributions lie in the owner's rotation buffer, in vectors. An owner without rows gets a greeting of one
/// vector from each sender.
template <u32 kRowVectors>
struct ScatterLayout {
  const RowRuns& runs;

  COMMFUSE_DEVICE u64 vectors(u32 owner) const { return static_cast<u64>(runs.count(owner)) * kRowVectors; }
  COMMFUSE_DEVICE u64 contribution(u32 from, u32 owner) const {
    return Rotation::sender_index(from, owner) * vectors(owner);
  }
  static COMMFUSE_DEVICE u64 greeting(u32 from, u32 owner) { return Rotation::sender_index(from, owner); }
  /// Everything that the peers write into `owner`'s buffer.
  template <u32 kRanks>
  COMMFUSE_DEVICE u64 dirty_bytes(u32 owner) const {
    const u64 each = vectors(owner);
    return (kRanks - 1) * (each == 0 ? 1 : each) * kVectorBytes;
  }
};

/// Sends kCount vectors to each of the other owners: `load(owner, k)` where `wanted(owner, k)`, to `slot(owner, k)`.
/// Loads are started together, so that their latencies overlap.
template <u32 kRanks, u32 kCount, class Wanted, class Load, class Slot>
COMMFUSE_DEVICE void scatter(const Rotation& rotation, Wanted wanted, Load load, Slot slot) {
  if constexpr (kRanks > 1) {
    constexpr u32 kPeers = kRanks - 1;
    constexpr u32 kChunk = kSendersAtATime<kPeers, kCount>;
    COMMFUSE_NO_UNROLL
    for (u32 base = 0; base < kPeers; base += kChunk) {
      Vec16 v[kChunk * kCount];
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        if (base + j >= kPeers) continue;
        const u32 owner = rotation.peer<kRanks>(base + j + 1);
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          if (wanted(owner, k)) v[j * kCount + k] = load(owner, k);
        }
      }
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        if (base + j >= kPeers) continue;
        const u32 owner = rotation.peer<kRanks>(base + j + 1);
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          if (wanted(owner, k)) ptx::store_relaxed_sys(slot(owner, k), sendable(v[j * kCount + k]));
        }
      }
    }
  }
}

/// No norm: no thread needs another's vector, so a run is one long run of vectors.
template <class Config>
COMMFUSE_DEVICE void reduce_scatter_flat(const ReduceScatterParams& params) {
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kRowVectors = Config::kHiddenSize / Elements<Config::kType>::kPerVector;
  const AllReduceParams& common = params.common;
  const u32 rank = common.rank;
  const RowRuns runs(params.row_begin, params.longest);
  const ScatterLayout<kRowVectors> layout{runs};
  const u64 longest = static_cast<u64>(runs.longest()) * kRowVectors;
  const u64 own_vectors = layout.vectors(rank);
  const Vec16* const own_in = common.in + static_cast<u64>(runs.begin(rank)) * kRowVectors;
  const u64 first = static_cast<u64>(ptx::block_index()) * Config::kThreads + ptx::thread_index();
  const u64 stride = static_cast<u64>(ptx::block_count()) * Config::kThreads;
  // The first input is on its way while the control words are read.
  Vec16 own[1] = {first < own_vectors ? ptx::load_weak(own_in + first) : Vec16{{0, 0, 0, 0}}};
  Call call;
  if (!call.begin(common)) return;
  const Rotation rotation(common, call);
  const bool one_each = own_vectors <= stride;

  const auto push = [&](u64 i) {
    scatter<kRanks, 1>(
        rotation, [&](u32 owner, u32) { return i < layout.vectors(owner); },
        [&](u32 owner, u32) {
          return ptx::load_weak(common.in + static_cast<u64>(runs.begin(owner)) * kRowVectors + i);
        },
        [&](u32 owner, u32) { return rotation.slot(owner, layout.contribution(rank, owner) + i); });
  };
  COMMFUSE_UNROLL
  for (u32 ahead = 0; ahead < kScatterAhead; ++ahead) {
    if (first + ahead * stride < longest) push(first + ahead * stride);
  }
  send_greetings<kRanks>(
      rank, rotation, [&](u32 to) { return runs.count(to) == 0; }, layout.greeting);
  rotation.clear_previous(call);
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();
  for (u64 i = first; i < longest; i += stride) {
    if (i + kScatterAhead * stride < longest) push(i + kScatterAhead * stride);
    if (i >= own_vectors) continue;
    if (i != first) own[0] = ptx::load_weak(own_in + i);
    own[0] = sendable(own[0]);
    Vec16 sum[1];
    const bool has[1] = {true};
    gather_sum<Config, 1>(
        rank, has, own, [&](u32 from, u32) { return rotation.own_slot(layout.contribution(from, rank) + i); }, call,
        runs.begin(rank) + static_cast<u32>(i / kRowVectors), !one_each, sum);
    ptx::store_weak(common.out + i, sum[0]);
  }
  receive_greetings<kRanks>(
      rank, rotation, call, runs.begin(rank), false, [&](u32) { return own_vectors == 0; }, layout.greeting);
  if (ptx::thread_index() == 0) call.finish(one_each ? layout.template dirty_bytes<kRanks>(rank) : 0);
}

/// With a norm: one team per own row.
template <class Config>
COMMFUSE_DEVICE void reduce_scatter_rows(const ReduceScatterParams& params) {
  using Epilogue = device::Epilogue<Config>;
  using Map = typename Epilogue::Map;
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kCount = Epilogue::kCount;
  const AllReduceParams& common = params.common;
  const u32 rank = common.rank;
  const RowRuns runs(params.row_begin, params.longest);
  const ScatterLayout<Epilogue::kRowVectors> layout{runs};
  const u32 team = ptx::block_index() / Config::kCluster;
  const u32 teams = ptx::block_count() / Config::kCluster;
  const u32 longest = runs.longest();
  const u32 own_begin = runs.begin(rank);
  const u32 own_count = runs.count(rank);

  Epilogue epilogue(common, ptx::shared_memory<typename Epilogue::Shared>());
  // The first row and what is added to it are on their way while the control words are read.
  Vec16 own[kCount];
  typename Epilogue::Prefetched fetched{};
  if (team < own_count) {
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) own[k] = epilogue.contribution(own_begin + team, k);
    fetched = epilogue.prefetch(team);
  }
  Call call;
  if (!call.begin(common)) return;
  const Rotation rotation(common, call);
  const bool one_each = own_count <= teams;

  const auto push = [&](u32 row) {
    scatter<kRanks, kCount>(
        rotation, [&](u32 owner, u32 k) { return row < runs.count(owner) && Map::has(k); },
        [&](u32 owner, u32 k) { return epilogue.contribution(runs.begin(owner) + row, k); },
        [&](u32 owner, u32 k) {
          return rotation.slot(
              owner, layout.contribution(rank, owner) + static_cast<u64>(row) * Epilogue::kRowVectors + Map::vector(k));
        });
  };
  COMMFUSE_UNROLL
  for (u32 ahead = 0; ahead < kScatterAhead; ++ahead) {
    if (team + ahead * teams < longest) push(team + ahead * teams);
  }
  send_greetings<kRanks>(
      rank, rotation, [&](u32 to) { return runs.count(to) == 0; }, layout.greeting);
  rotation.clear_previous(call);
  epilogue.write_padding();
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();

  bool has[kCount];
  COMMFUSE_UNROLL
  for (u32 k = 0; k < kCount; ++k) has[k] = Map::has(k);
  for (u32 row = team; row < longest; row += teams) {
    if (row + kScatterAhead * teams < longest) push(row + kScatterAhead * teams);
    if (row >= own_count) continue;
    if (row != team) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) own[k] = epilogue.contribution(own_begin + row, k);
      fetched = epilogue.prefetch(row);
    }
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) own[k] = sendable(own[k]);
    Vec16 y[kCount];
    gather_sum<Config, kCount>(
        rank, has, own,
        [&](u32 from, u32 k) {
          return rotation.own_slot(layout.contribution(from, rank) + static_cast<u64>(row) * Epilogue::kRowVectors +
                                   Map::vector(k));
        },
        call, own_begin + row, !one_each, y);
    const Vec16 facts = epilogue.complete_row(row, fetched, y);
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) epilogue.write(row, k, y[k], facts);
  }
  receive_greetings<kRanks>(
      rank, rotation, call, own_begin, false, [&](u32) { return own_count == 0; }, layout.greeting);
  if (ptx::thread_index() == 0) call.finish(one_each ? layout.template dirty_bytes<kRanks>(rank) : 0);
}

template <class Config>
COMMFUSE_DEVICE void reduce_scatter(const ReduceScatterParams& params) {
  static_assert(Config::kHiddenSize % Elements<Config::kType>::kPerVector == 0, "rows are multiples of 16 bytes");
  begin_kernel(params.common);
  if constexpr (Config::kNorm == Norm::kNone && !Config::kResidual) {
    reduce_scatter_flat<Config>(params);
  } else {
    reduce_scatter_rows<Config>(params);
  }
}

}  // namespace commfuse::device
