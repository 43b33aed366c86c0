// All-gather: every rank sends its own rows to every other rank, bit for bit (exact.cuh), and writes all rows.
//
// With norms (kDual) the first kXWidth columns of a row and the kYWidth columns after them are RMS-normalised, each
// part over itself. The owner of a row finds both inverse root mean squares and sends them in the headers, so that a
// receiver treats every vector by itself: no reduction is done twice.
//   Bytes per rank (N ranks, M rows of R bytes in even runs): read M/N R, send and receive (N - 1)/N M R * 33/32.
//
// There is one phase. With at most one row (or group of vectors) for each team the next call empties the buffer; with
// more, a team sends one row ahead of the ones that it waits for and empties slots as it has read them. No team waits
// for ever, all being resident together: rows w are sent before any row w is waited for, and sending waits for nobody.
//
// A rank without rows sends greetings instead (greeting.cuh): its peers must still learn that it has begun the call.
#pragma once

#include "device/exact.cuh"
#include "device/gather.cuh"
#include "device/greeting.cuh"
#include "device/norm_weights.cuh"
#include "device/quant.cuh"
#include "device/row_runs.cuh"

namespace commfuse::device {

/// A group of vectors in a rotation buffer: a header, then the vectors of the 32 lanes.
constexpr u32 kGroupVectors = kWarp + 1;

/// Where groups lie in a receiver's buffer, in vectors. Runs are as long as the longest.
struct GatherLayout {
  u64 groups;  ///< of the longest run

  COMMFUSE_DEVICE u64 group(u32 from, u32 to, u64 index) const {
    return (Rotation::sender_index(from, to) * groups + index) * kGroupVectors;
  }
  template <u32 kRanks>
  COMMFUSE_DEVICE u64 dirty_bytes() const {
    return (kRanks - 1) * groups * kGroupVectors * kVectorBytes;
  }
};

/// Sends a group to every other rank. All lanes of a warp together; `facts` are words 1 to 3 of the header.
template <u32 kRanks, class IndexOf>
COMMFUSE_DEVICE void send_group(u32 rank, const Rotation& rotation, const GatherLayout& layout, IndexOf index, bool has,
                                const Vec16& v, Vec16 facts) {
  const u32 lane = ptx::thread_index() % kWarp;
  const u32 mask = mask_of_warp(has ? v : Vec16{{0, 0, 0, 0}});
  const Vec16 sent = masked(v, mask);
  facts.word[0] = mask;
  facts = sendable(facts);
  COMMFUSE_UNROLL
  for (u32 step = 1; step < kRanks; ++step) {
    const u32 to = rotation.peer<kRanks>(step);
    Vec16* slot = rotation.slot(to, layout.group(rank, to, index()));
    if (has) ptx::store_relaxed_sys(slot + 1 + lane, sent);
    if (lane == 0) ptx::store_relaxed_sys(slot, facts);
  }
}

/// Receives kCount groups of every other rank: `wanted(from, k)` says whether there is one, the same for all lanes of
/// the warp, and `has(from, k)` whether this lane has a vector of it; `take(from, k, v, facts)` gets them, by all lanes
/// of the warp where a group is wanted.
template <u32 kRanks, u32 kCount, class Wanted, class Has, class IndexOf, class TokenOf, class Take>
COMMFUSE_DEVICE void receive_groups(u32 rank, const Rotation& rotation, const GatherLayout& layout, Call& call,
                                    bool empty_after, Wanted wanted_group, Has has, IndexOf index, TokenOf token,
                                    Take take) {
  if constexpr (kRanks > 1) {
    constexpr u32 kPeers = kRanks - 1;
    constexpr u32 kChunk = kSendersAtATime<kPeers, 2 * kCount>;
    const u32 lane = ptx::thread_index() % kWarp;
    COMMFUSE_NO_UNROLL
    for (u32 base = 0; base < kPeers; base += kChunk) {
      Vec16* wanted[2 * kChunk * kCount];
      Vec16 v[2 * kChunk * kCount];
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        const bool is_peer = base + j < kPeers;
        const u32 from = is_peer ? rotation.peer<kRanks>(base + j + 1) : rank;
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          const u32 i = 2 * (j * kCount + k);
          const bool is_wanted = is_peer && wanted_group(from, k);
          Vec16* slot = is_wanted ? rotation.own_slot(layout.group(from, rank, index(k))) : nullptr;
          wanted[i] = slot;
          wanted[i + 1] = is_wanted && has(from, k) ? slot + 1 + lane : nullptr;
          v[i + 1] = {{0, 0, 0, 0}};
        }
      }
      receive(wanted, v, call, token(rotation.peer<kRanks>(base + 1)),
              [&](u32 i) { return rotation.peer<kRanks>(base + i / (2 * kCount) + 1); });
      // Every lane has read the headers before one of them empties the slots.
      ptx::warp_barrier();
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        if (base + j >= kPeers) continue;
        const u32 from = rotation.peer<kRanks>(base + j + 1);
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          const u32 i = 2 * (j * kCount + k);
          if (wanted[i] == nullptr) continue;
          take(from, k, masked(v[i + 1], v[i].word[0]), v[i]);
          if (!empty_after) continue;
          if (lane == 0) make_empty(wanted[i]);
          if (wanted[i + 1] != nullptr) make_empty(wanted[i + 1]);
        }
      }
    }
  }
}

/// Without norms a run is one long run of vectors, which warps take in groups.
template <class Config>
COMMFUSE_DEVICE void all_gather_flat(const AllGatherParams& params) {
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u64 kRowVectors = Config::kHiddenSize / Elements<Config::kType>::kPerVector;
  static_assert(Config::kThreads % kWarp == 0, "whole warps");
  const AllReduceParams& common = params.common;
  const u32 rank = common.rank;
  const RowRuns runs(params.row_begin, params.longest);
  const u32 lane = ptx::thread_index() % kWarp;
  const u64 first = (static_cast<u64>(ptx::block_index()) * Config::kThreads + ptx::thread_index()) / kWarp;
  const u64 stride = static_cast<u64>(ptx::block_count()) * (Config::kThreads / kWarp);
  const auto vectors = [&](u32 of) { return runs.count(of) * kRowVectors; };
  const auto groups = [&](u32 of) { return (vectors(of) + kWarp - 1) / kWarp; };
  const auto vector_of = [&](u64 group) { return group * kWarp + lane; };
  const u64 own_vectors = vectors(rank);
  const u64 own_groups = groups(rank);
  const GatherLayout layout{(runs.longest() * kRowVectors + kWarp - 1) / kWarp};
  Vec16* const own_out = common.out + runs.begin(rank) * kRowVectors;
  // The first input is on its way while the control words are read.
  Vec16 own = vector_of(first) < own_vectors ? ptx::load_weak(common.in + vector_of(first)) : Vec16{{0, 0, 0, 0}};
  Call call;
  if (!call.begin(common)) return;
  const Rotation rotation(common, call);
  const bool one_each = layout.groups <= stride;

  const auto send = [&](u64 group) {
    const bool has = vector_of(group) < own_vectors;
    if (group != first && has) own = ptx::load_weak(common.in + vector_of(group));
    send_group<kRanks>(rank, rotation, layout, [&] { return group; }, has, own, {{0, 0, 0, 0}});
    if (has) ptx::store_weak(own_out + vector_of(group), own);
  };
  const auto greeting = [&](u32 from, u32 to) { return layout.group(from, to, 0); };
  if (first < own_groups) send(first);
  send_greetings<kRanks>(
      rank, rotation, [&](u32) { return own_groups == 0; }, greeting);
  rotation.clear_previous(call);
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();
  for (u64 group = first; group < layout.groups; group += stride) {
    if (group + stride < own_groups) send(group + stride);
    receive_groups<kRanks, 1>(
        rank, rotation, layout, call, !one_each, [&](u32 from, u32) { return group < groups(from); },
        [&](u32 from, u32) { return vector_of(group) < vectors(from); }, [&](u32) { return group; },
        [&](u32 from) { return runs.begin(from) + static_cast<u32>(group * kWarp / kRowVectors); },
        [&](u32 from, u32, const Vec16& v, const Vec16&) {
          if (vector_of(group) < vectors(from)) {
            ptx::store_weak(common.out + runs.begin(from) * kRowVectors + vector_of(group), v);
          }
        });
  }
  receive_greetings<kRanks>(
      rank, rotation, call, 0, !one_each, [&](u32 from) { return runs.count(from) == 0; }, greeting);
  if (ptx::thread_index() == 0) call.finish(one_each ? layout.template dirty_bytes<kRanks>() : 0);
}

/// The two norms of a row.
template <class Config>
class DualNorm {
 public:
  using Weights = NormWeights<Config>;
  static constexpr Type kType = Config::kType;
  static constexpr u32 kN = Elements<kType>::kPerVector;
  static constexpr u32 kRowVectors = Config::kHiddenSize / kN;
  static constexpr u32 kXVectors = Config::kXWidth / kN;
  static constexpr u32 kYVectors = Config::kYWidth / kN;
  static_assert(Config::kXWidth % kN == 0 && Config::kYWidth % kN == 0, "no vector is half in a part");
  using Map = RowMap<kRowVectors, Config::kThreads, Config::kCluster>;
  static constexpr u32 kCount = Map::kPerThread;
  static constexpr bool kQuantizes = Config::kQuantizer != Quantizer::kNone;
  using Reducer = RowReducer<Map>;
  using Shared = typename Reducer::Shared;

  COMMFUSE_DEVICE DualNorm(const AllGatherParams& params, Shared& shared)
      : params_(params), reducer_(shared), quantizer_(quant_tensors(params.common)) {
    if constexpr (kHoldWeights) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) held_[k] = load_weight(k);
    }
  }

  /// Words 1 and 2: the inverse root mean squares. All threads of the team call it.
  COMMFUSE_DEVICE Vec16 facts_of(const Vec16 (&row)[kCount]) {
    float x[kCount];
    float y[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      const float sum = Weights::sum_of_squares(row[k]);
      x[k] = in_x(k) ? sum : 0.0f;
      y[k] = in_y(k) ? sum : 0.0f;
    }
    constexpr float kInverseX = 1.0f / static_cast<float>(Config::kXWidth);
    constexpr float kInverseY = 1.0f / static_cast<float>(Config::kYWidth);
    const float inverse_x = inverse_rms(reducer_.template reduce<Sum>(x), kInverseX, params_.common.eps);
    const float inverse_y = inverse_rms(reducer_.template reduce<Sum>(y), kInverseY, params_.y_eps);
    return {{0, ptx::bits_of(inverse_x), ptx::bits_of(inverse_y), 0}};
  }

  /// Writes the k-th vector of a row. All lanes of a warp together. The order matters: y_norm_out may lie in the
  /// columns of `out` that it is made of.
  COMMFUSE_DEVICE void write(u32 row, u32 k, const Vec16& v, const Vec16& facts) const {
    const u32 vector = Map::vector(k);
    if (Map::has(k)) ptx::store_weak(params_.common.out + static_cast<u64>(row) * kRowVectors + vector, v);
    const float inverse = ptx::float_of(in_x(k) ? facts.word[1] : facts.word[2]);
    const Vec16 norm = Weights::normalised(v, inverse, weight(k));
    if (in_x(k)) ptx::store_weak(params_.common.norm_out + static_cast<u64>(row) * kXVectors + vector, norm);
    if (in_y(k)) ptx::store_weak(params_.y_norm_out + row * params_.y_norm_stride + (vector - kXVectors), norm);
    if constexpr (kQuantizes) {
      float x[kN];
      unpack<kType>(in_x(k) ? norm : Vec16{{0, 0, 0, 0}}, x);
      const QuantizedVector quantized = quantizer_.encode(x);
      if (in_x(k)) {
        quantizer_.store_values(row, vector, quantized);
        if (quantizer_.stores_scale(vector)) quantizer_.store_scale(row, vector, quantized.scale);
      }
    }
  }

  /// Once per call, by all threads.
  COMMFUSE_DEVICE void write_padding() const {
    if constexpr (kQuantizes) {
      if ((params_.common.flags & kZeroScalePadding) == 0) return;
      quantizer_.zero_padding(params_.common.tokens,
                              static_cast<u64>(ptx::block_index()) * Config::kThreads + ptx::thread_index(),
                              static_cast<u64>(ptx::block_count()) * Config::kThreads);
    }
  }

 private:
  static constexpr bool kHoldWeights = kCount * Weights::kWeightVectors <= 4;
  using Weight = typename Weights::Weight;

  /// The quantizer's rows are the first part.
  struct XConfig : Config {
    static constexpr u32 kHiddenSize = Config::kXWidth;
  };
  struct NoQuantizer {
    COMMFUSE_DEVICE explicit NoQuantizer(const QuantTensors&) {}
  };
  template <bool kYes, class C>
  struct Choose {
    using Result = RowQuantizer<C>;
  };
  template <class C>
  struct Choose<false, C> {
    using Result = NoQuantizer;
  };
  static COMMFUSE_DEVICE QuantTensors quant_tensors(const AllReduceParams& common) {
    return {static_cast<u8*>(common.quant_out), static_cast<u8*>(common.scale_out), common.scale_factor,
            common.scale_stride};
  }

  static COMMFUSE_DEVICE bool in_x(u32 k) { return Map::vector(k) < kXVectors; }
  static COMMFUSE_DEVICE bool in_y(u32 k) { return !in_x(k) && Map::vector(k) < kXVectors + kYVectors; }
  COMMFUSE_DEVICE Weight load_weight(u32 k) const {
    const u32 vector = Map::vector(k);
    if (in_x(k)) return Weights::load(params_.common.gamma, vector, true);
    return Weights::load(params_.y_gamma, vector - kXVectors, in_y(k));
  }
  COMMFUSE_DEVICE Weight weight(u32 k) const {
    if constexpr (kHoldWeights) {
      return held_[k];
    } else {
      return load_weight(k);
    }
  }

  const AllGatherParams& params_;
  Reducer reducer_;
  typename Choose<kQuantizes, XConfig>::Result quantizer_;
  Weight held_[kHoldWeights ? kCount : 1];
};

/// With norms: a team sends and receives whole rows.
template <class Config>
COMMFUSE_DEVICE void all_gather_rows(const AllGatherParams& params) {
  using Norms = DualNorm<Config>;
  using Map = typename Norms::Map;
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kCount = Norms::kCount;
  const AllReduceParams& common = params.common;
  const u32 rank = common.rank;
  const RowRuns runs(params.row_begin, params.longest);
  const u32 team = ptx::block_index() / Config::kCluster;
  const u32 teams = ptx::block_count() / Config::kCluster;
  const u32 own_begin = runs.begin(rank);
  const u32 own_count = runs.count(rank);
  const u32 longest = runs.longest();
  const GatherLayout layout{static_cast<u64>(longest) * Map::kGroups};

  Norms norms(params, ptx::shared_memory<typename Norms::Shared>());
  // The first row is on its way while the control words are read.
  Vec16 own[kCount];
  const auto load = [&](u32 row) {
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      own[k] = Map::has(k) ? ptx::load_weak(common.in + static_cast<u64>(row) * Norms::kRowVectors + Map::vector(k))
                           : Vec16{{0, 0, 0, 0}};
    }
  };
  if (team < own_count) load(team);
  Call call;
  if (!call.begin(common)) return;
  const Rotation rotation(common, call);
  const bool one_each = longest <= teams;

  const auto group_of = [&](u32 row, u32 k) { return static_cast<u64>(row) * Map::kGroups + Map::group(k); };
  const auto send = [&](u32 row) {
    if (row != team) load(row);
    const Vec16 facts = sendable(norms.facts_of(own));
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      if (Map::group(k) < Map::kGroups) {
        send_group<kRanks>(
            rank, rotation, layout, [&] { return group_of(row, k); }, Map::has(k), own[k], facts);
      }
    }
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) norms.write(own_begin + row, k, own[k], facts);
  };
  const auto greeting = [&](u32 from, u32 to) { return layout.group(from, to, 0); };
  if (team < own_count) send(team);
  send_greetings<kRanks>(
      rank, rotation, [&](u32) { return own_count == 0; }, greeting);
  rotation.clear_previous(call);
  norms.write_padding();
  ptx::block_barrier();
  if (ptx::thread_index() == 0) call.arrive();
  for (u32 row = team; row < longest; row += teams) {
    if (row + teams < own_count) send(row + teams);
    receive_groups<kRanks, kCount>(
        rank, rotation, layout, call, !one_each,
        [&](u32 from, u32 k) { return row < runs.count(from) && Map::group(k) < Map::kGroups; },
        [&](u32, u32 k) { return Map::has(k); }, [&](u32 k) { return group_of(row, k); },
        [&](u32 from) { return runs.begin(from) + row; },
        [&](u32 from, u32 k, const Vec16& v, const Vec16& facts) { norms.write(runs.begin(from) + row, k, v, facts); });
  }
  receive_greetings<kRanks>(
      rank, rotation, call, 0, !one_each, [&](u32 from) { return runs.count(from) == 0; }, greeting);
  if (ptx::thread_index() == 0) call.finish(one_each ? layout.template dirty_bytes<kRanks>() : 0);
}

template <class Config>
COMMFUSE_DEVICE void all_gather(const AllGatherParams& params) {
  static_assert(Config::kHiddenSize % Elements<Config::kType>::kPerVector == 0, "rows are multiples of 16 bytes");
  begin_kernel(params.common);
  if constexpr (Config::kNorm == Norm::kNone) {
    all_gather_flat<Config>(params);
  } else {
    all_gather_rows<Config>(params);
  }
}

}  // namespace commfuse::device
