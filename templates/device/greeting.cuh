// One vector that says "I have begun this call", for pairs of ranks between which no data travels.
//
// rotation.cuh needs that in every call every rank receives something from each other rank. Where a rank has no rows, a
// reduce-scatter sends it nothing, and without a greeting it would wait for nobody: it could be two calls ahead of a
// peer, writing into a rotation buffer that the peer has yet to empty. (A rank with rows that receives from it only
// learns that it has begun; it is the rank without rows that must be held back.)
#pragma once

#include "device/gather.cuh"

namespace commfuse::device {

/// By the first threads of the first block, one for each peer: `to_greet(peer)` says whether that peer gets nothing
/// else from us, `index(from, to)` where in the receiver's buffer the vector lies.
template <u32 kRanks, class ToGreet, class IndexOf>
COMMFUSE_DEVICE void send_greetings(u32 rank, const Rotation& rotation, ToGreet to_greet, IndexOf index) {
  static_assert(kRanks <= kWarp, "one thread for each peer");
  const u32 step = ptx::thread_index() + 1;
  if (ptx::block_index() != 0 || step >= kRanks) return;
  const u32 to = rotation.peer<kRanks>(step);
  if (to_greet(to)) ptx::store_relaxed_sys(rotation.slot(to, index(rank, to)), {{0, 0, 0, 0}});
}

/// Waits for the greetings of the peers for which `greets(peer)` is true, by the same threads. The slots stay full: the
/// caller counts them among the bytes that the next call empties, or empties them with `empty_after`.
template <u32 kRanks, class Greets, class IndexOf>
COMMFUSE_DEVICE void receive_greetings(u32 rank, const Rotation& rotation, Call& call, u32 token, bool empty_after,
                                       Greets greets, IndexOf index) {
  const u32 step = ptx::thread_index() + 1;
  if (ptx::block_index() != 0 || step >= kRanks) return;
  const u32 from = rotation.peer<kRanks>(step);
  if (!greets(from)) return;
  Vec16* const wanted[1] = {rotation.own_slot(index(from, rank))};
  Vec16 v[1];
  receive(wanted, v, call, token, [&](u32) { return from; });
  if (empty_after) make_empty(wanted[0]);
}

}  // namespace commfuse::device
