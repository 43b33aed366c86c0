// All-reduce in two algorithms. A "team" is a block, or the blocks of a cluster, that handles one token at a time.
//
// One-shot: every rank sends its whole input to every other rank, adds what it received and does the whole epilogue.
//   Bytes per rank (N ranks, M tokens, rows of R bytes): read M R, send and receive (N - 1) M R.
//   Latency: control and input load, push, arrival, poll, row sum (one barrier), store. Everything that does not depend
//   on the peers (emptying, residual and weights, bookkeeping) is done while the pushes are under way.
// Two-shot: the owner of a token (partition.cuh) receives its row from every rank, adds, normalises, and sends the
//   finished row y with its facts (epilogue.cuh) to every rank. Both phases wait on the data itself, not on flags.
//   Bytes per rank: read M R, send and receive (N - 1)/N M R twice.
//   Order of work of a team, w counting its rows: push the rows of w + 1 to their owners, reduce and send its own row
//   w, receive the rows w - 1 of all owners: what it waits for was sent a whole step ago. It cannot deadlock: pushing
//   waits for nobody, reducing waits only for pushes of row w, which every team does before it reduces its row w, and
//   receiving only for reductions. (All teams of all ranks must be resident together: planner.)
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

/// What both algorithms begin with. Nothing is read before this: inputs, weights and control words may all be written
/// by the kernels before.
COMMFUSE_DEVICE void begin_kernel(const AllReduceParams& params) {
  ptx::wait_for_predecessors();
  // A dependent waits for our completion before it touches data, so it may start at once; without the flag it starts
  // when this grid ends.
  if (params.flags & kTriggerEarly) ptx::release_dependents();
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

/// Where the two phases of a two-shot call lie in a rotation buffer, in vectors.
template <class Config, class Epilogue>
struct TwoShotLayout {
  static constexpr u32 kRowVectors = Epilogue::kRowVectors;
  /// Facts travel once per group of 32 vectors, so that each warp finds them beside its own vectors and can empty them
  /// without asking other warps.
  static constexpr u32 kSentVectors = kRowVectors + (Epilogue::kHasFacts ? Epilogue::Map::kGroups : 0);

  u64 rows;  ///< of the longest run
  /// Contribution of the sender to row `row` of the receiver's run.
  COMMFUSE_DEVICE u64 contribution(u32 sender_index, u32 row) const {
    return (sender_index * rows + row) * kRowVectors;
  }
  /// Finished row `row` of the sender's run.
  COMMFUSE_DEVICE u64 finished(u32 sender_index, u32 row) const {
    return (Config::kWorldSize - 1) * rows * kRowVectors + (sender_index * rows + row) * kSentVectors;
  }
};

template <class Config>
COMMFUSE_DEVICE void all_reduce_two_shot(const AllReduceParams& params) {
  static_assert(Config::kHiddenSize % Elements<Config::kType>::kPerVector == 0, "rows are multiples of 16 bytes");
  using Epilogue = device::Epilogue<Config>;
  using Map = typename Epilogue::Map;
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kCount = Epilogue::kCount;
  begin_kernel(params);
  const u32 team = ptx::block_index() / Config::kCluster;
  const u32 teams = ptx::block_count() / Config::kCluster;
  Epilogue epilogue(params, ptx::shared_memory<typename Epilogue::Shared>());
  Call call;
  if (!call.begin(params)) return;
  const Rotation rotation(params, call);
  const Partition<kRanks> partition(params.tokens);
  const u32 own_begin = partition.begin(params.rank);
  const u32 own_count = partition.count(params.rank);
  const u32 rows = partition.longest();
  const TwoShotLayout<Config, Epilogue> layout{rows};
  const u32 lane = ptx::thread_index() % kWarp;
  bool has[kCount];
  COMMFUSE_UNROLL
  for (u32 k = 0; k < kCount; ++k) has[k] = Map::has(k);

  const auto push_contributions = [&](u32 row) {
    COMMFUSE_NO_UNROLL
    for (u32 step = 1; step < kRanks; ++step) {
      const u32 owner = rotation.peer<kRanks>(step);
      if (row >= partition.count(owner)) continue;
      Vec16* slot = rotation.slot(owner, layout.contribution(Rotation::sender_index(params.rank, owner), row));
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        if (has[k])
          ptx::store_relaxed_sys(slot + Map::vector(k),
                                 sendable(epilogue.contribution(partition.begin(owner) + row, k)));
      }
    }
  };
  const auto reduce_own = [&](u32 row) {
    if (row >= own_count) return;
    const u32 token = own_begin + row;
    const typename Epilogue::Prefetched fetched = epilogue.prefetch(token);
    Vec16 own[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) own[k] = sendable(epilogue.contribution(token, k));
    Vec16 y[kCount];
    gather_sum<Config, kCount>(
        params.rank, has, own,
        [&](u32 from, u32 k) {
          return rotation.own_slot(layout.contribution(Rotation::sender_index(from, params.rank), row) +
                                   Map::vector(k));
        },
        call, token, true, y);
    const Vec16 facts = sendable(epilogue.complete_row(token, fetched, y));
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) y[k] = sendable(y[k]);
    // A thread that gave up sends nothing: its peers then miss its vectors and give up too, instead of taking a row
    // made of what memory happened to hold for a result.
    COMMFUSE_UNROLL
    for (u32 step = 1; step < kRanks && !call.gave_up(); ++step) {
      const u32 to = rotation.peer<kRanks>(step);
      Vec16* slot = rotation.slot(to, layout.finished(Rotation::sender_index(params.rank, to), row));
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        if (has[k]) ptx::store_relaxed_sys(slot + Map::vector(k), y[k]);
        if (Epilogue::kHasFacts && lane == 0 && Map::group(k) < Map::kGroups) {
          ptx::store_relaxed_sys(slot + Epilogue::kRowVectors + Map::group(k), facts);
        }
      }
    }
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) epilogue.write(token, k, y[k], facts);
  };
  const auto receive_finished = [&](u32 row) {
    constexpr u32 kPeers = kRanks - 1;
    constexpr u32 kEach = Epilogue::kHasFacts ? 2 : 1;
    constexpr u32 kChunk = kPeers == 0 ? 1 : kSendersAtATime<kPeers, kCount * kEach>;
    COMMFUSE_NO_UNROLL
    for (u32 base = 0; base < kPeers; base += kChunk) {
      Vec16* wanted[kChunk * kCount * kEach];
      Vec16 v[kChunk * kCount * kEach];
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        const u32 owner = base + j < kPeers ? rotation.peer<kRanks>(base + j + 1) : params.rank;
        const bool sent = base + j < kPeers && row < partition.count(owner);
        Vec16* slot = rotation.own_slot(layout.finished(Rotation::sender_index(owner, params.rank), row));
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          wanted[(j * kCount + k) * kEach] = sent && has[k] ? slot + Map::vector(k) : nullptr;
          if constexpr (Epilogue::kHasFacts) {
            wanted[(j * kCount + k) * kEach + 1] =
                sent && Map::group(k) < Map::kGroups ? slot + Epilogue::kRowVectors + Map::group(k) : nullptr;
          }
        }
      }
      receive(wanted, v, call, partition.begin(rotation.peer<kRanks>(base + 1)) + row,
              [&](u32 i) { return rotation.peer<kRanks>(base + i / (kCount * kEach) + 1); });
      // Every lane has read the facts before one of them empties the slot.
      ptx::warp_barrier();
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        if (base + j >= kPeers) continue;
        const u32 owner = rotation.peer<kRanks>(base + j + 1);
        if (row >= partition.count(owner)) continue;
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          const u32 i = (j * kCount + k) * kEach;
          epilogue.write(partition.begin(owner) + row, k, v[i],
                         Epilogue::kHasFacts ? v[i + kEach - 1] : Vec16{{0, 0, 0, 0}});
          if (wanted[i] != nullptr) make_empty(wanted[i]);
          if (Epilogue::kHasFacts && lane == 0 && wanted[i + kEach - 1] != nullptr) make_empty(wanted[i + kEach - 1]);
        }
      }
    }
  };

  if (team < rows) push_contributions(team);
  rotation.clear_previous(call);
  epilogue.write_padding();
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();
  u32 before = rows;
  for (u32 row = team; row < rows; row += teams) {
    if (row + teams < rows) push_contributions(row + teams);
    reduce_own(row);
    if (before < rows) receive_finished(before);
    before = row;
  }
  if (before < rows) receive_finished(before);
  if (ptx::thread_index() == 0) call.finish(0);
}

}  // namespace commfuse::device
