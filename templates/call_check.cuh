// Checking mode: before each call a rank announces the call to all others and compares what they announce. One warp,
// launched on the call's stream just before the call; lane s is responsible for rank s.
//
// What is announced: a header of kCallWords words (params.cuh), which names the operation, its shape, types and
// options, and the epoch. Lane s stores it into its place in the memory of rank s, waits for the header of rank s in
// our own memory, empties that place and compares. Every rank compares with every other, so both sides of a difference
// report it. A rank that differs has announced its call all the same, so no rank has to wait for its deadline to learn
// of it. After a difference the workspace is stopped, and the call that follows on the stream returns at once.
//
// The header is its own flag, as data are (rotation.cuh): a place is filled with 0xffffffff, and a word that is to be
// sent as 0xffffffff is sent as 0xfffffffe. Both sides compare words as they are sent.
//
// It cannot deadlock: a rank sends to all before it waits for anybody, and the wait has the deadline of every call. It
// is launched without programmatic overlap: it starts when the kernel before it is complete, and the call starts when
// it is complete. So it needs a place on the device only where the call itself has one.
//
// It cannot read a stale header. Announcement n uses places n mod 2. A rank begins announcement n after its own
// announcement n - 1 was complete, which had received what every other rank sent in announcement n - 1. So when a peer
// writes our place n mod 2 for announcement n, we had begun announcement n - 1, hence completed announcement n - 2, in
// which that place was read and emptied. One place would not do: a peer that has our header n - 1 may send its header n
// before we have read its header n - 1. A third would never be needed. n is Control::checks and not the epoch, because
// a call without tokens is announced too (the others may bring some) and has no epoch of its own.
//
// Two calls of one workspace at once, on two streams. The first thing that an announcement does is to put the epoch
// into Control::announced. Finding it there means that this epoch was announced before and its call has not finished
// (it would have counted the epoch up): kBusy, here and, through PeerSignals::stop, on all ranks. The stray
// announcement then waits until the call that is under way has ended, which it does soon, since all that wait give up,
// and only then stops the workspace: Control::stopped must not change while a call reads it (call.cuh). What cannot be
// noticed is a call that begins in the moment between the last block's finish() and the end of its slower blocks.
//
// All state is in device memory, so a captured announcement replays correctly.
#pragma once

#include "device/rotation.cuh"

namespace commfuse::device {

/// Threads of the one block, a warp.
constexpr u32 kCallCheckThreads = 32;

/// The header of this call, as it is sent.
COMMFUSE_DEVICE void complete_header(const CallCheckParams& params, u64 epoch, Vec16 (&header)[kHeaderVectors]) {
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kHeaderVectors; ++i) header[i] = params.header[i];
  header[kGenerationWord / 4].word[kGenerationWord % 4] = params.call.generation;
  header[kEpochLowWord / 4].word[kEpochLowWord % 4] = static_cast<u32>(epoch);
  header[kEpochHighWord / 4].word[kEpochHighWord % 4] = static_cast<u32>(epoch >> 32);
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kHeaderVectors; ++i) header[i] = sendable(header[i]);
}

/// One lane's part: sends to rank `peer`, receives from it, compares.
COMMFUSE_DEVICE void exchange_headers(const CallCheckParams& params, Call& call, u32 buffer, u32 peer) {
  Vec16 own[kHeaderVectors];
  complete_header(params, call.epoch(), own);
  Vec16* const place_there = call.signals_of(peer)->header[buffer][params.call.rank];
  Vec16* const place_here = call.signals_of(params.call.rank)->header[buffer][peer];
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kHeaderVectors; ++i) ptx::store_relaxed_sys(place_there + i, own[i]);
  Vec16 other[kHeaderVectors];
  for (u32 rounds = 0;;) {
    bool arrived = true;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kHeaderVectors; ++i) {
      other[i] = ptx::load_relaxed_sys(place_here + i);
      arrived = arrived && has_arrived(other[i]);
    }
    if (arrived) break;
    if (call.should_give_up(rounds, peer, 0)) return;
  }
  COMMFUSE_UNROLL
  for (u32 i = 0; i < kHeaderVectors; ++i) make_empty(place_here + i);
  // Backwards, so that the first word that differs is the one that is left.
  u32 field = kCallWords;
  u32 own_value = 0;
  u32 other_value = 0;
  COMMFUSE_UNROLL
  for (u32 i = kCallWords; i > 0; --i) {
    const u32 mine = own[(i - 1) / 4].word[(i - 1) % 4];
    const u32 theirs = other[(i - 1) / 4].word[(i - 1) % 4];
    if (mine == theirs) continue;
    field = i - 1;
    own_value = mine;
    other_value = theirs;
  }
  if (field != kCallWords) call.fail_mismatch(peer, field, own_value, other_value);
}

/// Ends the waiting kernels of all other ranks.
COMMFUSE_DEVICE void stop_peers(const AllReduceParams& params, const Call& call, DeviceStatus status) {
  COMMFUSE_NO_UNROLL
  for (u32 rank = 0; rank < kMaxWorldSize; ++rank) {
    if (rank == params.rank || params.peer_buffer[rank] == 0) continue;
    ptx::store_relaxed_sys(&call.signals_of(rank)->stop, static_cast<u32>(status) << kStopRankBits | params.rank);
  }
}

/// Whether this is the only call of its epoch. Otherwise says so to all ranks, waits for the other one's end, if it
/// comes within the deadline, and stops the workspace.
COMMFUSE_DEVICE bool claim_epoch(const AllReduceParams& params, Call& call) {
  Control* const control = params.control;
  const u32 epoch = static_cast<u32>(call.epoch());
  const u32 mark = (epoch & 0x7fffffffu) + 1;
  const u32 before = ptx::load_relaxed_sys(&control->announced);
  if (before != mark && ptx::compare_and_swap_sys(&control->announced, before, mark) == before) return true;
  call.fail(DeviceStatus::kBusy, params.rank, 0);
  stop_peers(params, call, DeviceStatus::kPeerBusy);
  // The low word of the epoch is the first of the structure.
  const u32* const finished = reinterpret_cast<const u32*>(&control->epoch);
  const u64 deadline = ptx::time_ns() + call.timeout_ns();
  while (ptx::load_relaxed_sys(&control->stopped) == 0) {
    if (ptx::load_relaxed_sys(finished) != epoch) {
      ptx::store_relaxed_sys(&control->stopped, 1u);
    } else if (ptx::time_ns() > deadline) {
      break;
    } else {
      ptx::spin();
    }
  }
  return false;
}

template <class Config>
COMMFUSE_DEVICE void call_check(const CallCheckParams& params) {
  static_assert(Config::kThreads == kCallCheckThreads && kMaxWorldSize <= kCallCheckThreads, "a lane for every rank");
  Control* const control = params.call.control;
  const u32 lane = ptx::thread_index();
  Call call;
  u32 goes_on = call.begin(params.call) ? 1 : 0;
  // Where two streams meet, lanes may have seen different things: what the first one saw counts for all.
  if (lane == 0 && goes_on != 0) goes_on = claim_epoch(params.call, call) ? 1 : 0;
  if (ptx::shuffle_from(goes_on, 0) == 0) return;
  const u32 checks = ptx::load_weak(&control->checks);
  if (lane < Config::kWorldSize && lane != params.call.rank) {
    exchange_headers(params, call, checks % kHeaderBuffers, lane);
  }
  ptx::warp_barrier();
  if (lane != 0) return;
  ptx::store_weak(&control->checks, checks + 1);
  if (ptx::load_relaxed_sys(&control->failed) != 0) {
    ptx::store_relaxed_sys(&control->stopped, 1u);
  } else if (params.header[kTokensWord / 4].word[kTokensWord % 4] == 0) {
    ptx::store_relaxed_sys(&control->announced, 0u);  // no call follows
  }
}

}  // namespace commfuse::device
