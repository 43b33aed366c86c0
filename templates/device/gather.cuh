// Receiving: the vectors that peers stored into our rotation buffer.
#pragma once

#include "device/rotation.cuh"

namespace commfuse::device {

/// Vectors that a thread waits for at a time: more hide more latency, but each costs four registers.
constexpr u32 kInFlight = 8;

/// How many senders to wait for at a time, with kCount vectors from each.
template <u32 kSenders, u32 kCount>
constexpr u32 kSendersAtATime = kInFlight / kCount < 1
                                    ? 1
                                    : (kInFlight / kCount < kSenders ? kInFlight / kCount : kSenders);

/// Waits for a set of vectors (or of words); `wanted[i]` is null where there is nothing to wait for. After a failure
/// the rest of v is whatever memory held. `sender(i)` names the rank, for the error.
template <class Vector, u32 kVectors, class SenderOf>
COMMFUSE_DEVICE void receive(Vector* const (&wanted)[kVectors], Vector (&v)[kVectors], Call& call, u32 token,
                             SenderOf sender) {
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kVectors; ++i) {
    if (wanted[i] != nullptr) v[i] = ptx::load_relaxed_sys(wanted[i]);
  }
  for (u32 rounds = 0;;) {
    u32 missing = kVectors;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kVectors; ++i) {
      if (wanted[i] != nullptr && !has_arrived(v[i])) missing = i;
    }
    if (missing == kVectors || call.should_give_up(rounds, sender(missing), token)) return;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kVectors; ++i) {
      if (wanted[i] != nullptr && !has_arrived(v[i])) v[i] = ptx::load_relaxed_sys(wanted[i]);
    }
  }
}

/// A row's vectors that can be read where they lie in every rank's memory: those of the first few ranks, under way.
template <class Config, u32 kCount>
struct PulledRow {
  static constexpr u32 kRanks = Config::kWorldSize;
  static constexpr u32 kChunk = kSendersAtATime<kRanks, kCount>;

  /// Loads the vectors of ranks `base` and following; `address(from, k)` is where they lie.
  template <class AddressOf>
  COMMFUSE_DEVICE void load(u32 base, const bool (&has)[kCount], AddressOf address) {
    COMMFUSE_UNROLL
    for (u32 j = 0; j < kChunk; ++j) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        v[j * kCount + k] = Vec16{{0, 0, 0, 0}};
        if ((kRanks % kChunk == 0 || base + j < kRanks) && has[k]) {
          v[j * kCount + k] = ptx::load_streaming(address(base + j, k));
        }
      }
    }
  }

  Vec16 v[kChunk * kCount];
};

/// The sum over all ranks, in ascending order, of the kCount vectors of a row whose first ranks' are in `row`.
/// `adjust(from, k, v)` is what rank `from` contributes if its input is v.
template <class Config, u32 kCount, class AddressOf, class Adjust>
COMMFUSE_DEVICE void pull_sum(PulledRow<Config, kCount>& row, const bool (&has)[kCount], AddressOf address,
                              Adjust adjust, Vec16 (&sum)[kCount]) {
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kChunk = PulledRow<Config, kCount>::kChunk;
  Fold<Config::kType, Config::kFp32Accumulate> fold[kCount];
  COMMFUSE_NO_UNROLL
  for (u32 base = 0; base < kRanks; base += kChunk) {
    if (base != 0) row.load(base, has, address);
    COMMFUSE_UNROLL
    for (u32 j = 0; j < kChunk; ++j) {
      if (kRanks % kChunk != 0 && base + j >= kRanks) continue;
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) fold[k].next(adjust(base + j, k, row.v[j * kCount + k]));
    }
  }
  COMMFUSE_UNROLL
  for (u32 k = 0; k < kCount; ++k) sum[k] = fold[k].sum();
}

/// The sum over all ranks, in ascending order, of kCount vectors: our own and those that each peer sent. `slot(from,
/// k)` is where rank `from`'s k-th vector arrives; vectors with !has[k] count as zero and are not waited for. With
/// `empty_after` the slots are emptied as they are read (rotation.cuh).
template <class Config, u32 kCount, class SlotOf>
COMMFUSE_DEVICE void gather_sum(u32 rank, const bool (&has)[kCount], const Vec16 (&own)[kCount], SlotOf slot,
                                Call& call, u32 token, bool empty_after, Vec16 (&sum)[kCount]) {
  constexpr u32 kRanks = Config::kWorldSize;
  constexpr u32 kChunk = kSendersAtATime<kRanks, kCount>;
  Fold<Config::kType, Config::kFp32Accumulate> fold[kCount];
  COMMFUSE_NO_UNROLL
  for (u32 base = 0; base < kRanks; base += kChunk) {
    Vec16* wanted[kChunk * kCount];
    Vec16 v[kChunk * kCount];
    COMMFUSE_UNROLL
    for (u32 j = 0; j < kChunk; ++j) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        v[j * kCount + k] = own[k];
        wanted[j * kCount + k] =
            (kRanks % kChunk == 0 || base + j < kRanks) && base + j != rank && has[k] ? slot(base + j, k) : nullptr;
      }
    }
    receive(wanted, v, call, token, [&](u32 i) { return base + i / kCount; });
    COMMFUSE_UNROLL
    for (u32 j = 0; j < kChunk; ++j) {
      if (kRanks % kChunk != 0 && base + j >= kRanks) continue;
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        fold[k].next(v[j * kCount + k]);
        if (empty_after && wanted[j * kCount + k] != nullptr) make_empty(wanted[j * kCount + k]);
      }
    }
  }
  COMMFUSE_UNROLL
  for (u32 k = 0; k < kCount; ++k) sum[k] = fold[k].sum();
}

}  // namespace commfuse::device
