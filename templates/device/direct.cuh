// Direct calls: some of a call's tensors lie in ranges that every rank has mapped (registered buffers). The owner of a
// token reads its row where it lies in every rank's input and writes the results where they belong in every rank's
// outputs; nothing of them is staged.
//
// States of rank r in call n, and the signals (PeerSignals) that announce them:
//   started:  its stream has come to the call, so its inputs are complete and its outputs may be overwritten. It stores
//             started[r] = n on every peer, and waits for nobody before.
//   working:  each block, once it has seen started[p] >= n from every p, touches the peers' tensors.
//   finished: all its blocks are done with the peers' tensors. The last of them stores finished[r] = n on every peer.
//   ended:    the last block has seen finished[p] >= n from every p, so nobody touches this rank's tensors any more.
// It cannot deadlock: each state waits only for states before it (and for vectors in the rotation buffers, which are
// sent without waiting), and all blocks of all ranks are resident together (planner).
// It cannot read stale data: a signal has one writer and only grows, so what an earlier call left is below n. started
// is stored with release after the dependency wait and loaded with acquire, so what earlier kernels of p wrote is seen;
// each block counts itself with release after its last access, the last block acquires that and stores finished with
// release, and its reader's kernel ends after that: the kernels that follow on p see all results, and none of our reads
// is still to come when they overwrite p's input. The end also keeps the precondition of the rotation (rotation.cuh):
// it is reached only after every rank has begun the call.
// A call that fails finishes nothing and touches nothing further; its peers wait for it in vain and fail too.
#pragma once

#include "device/call.cuh"

namespace commfuse::device {

template <u32 kRanks>
class DirectAccess {
 public:
  struct Shared {
    u64 offset[kDirectTensors][kRanks];
    u32 failed;
    u32 is_last;
  };

  COMMFUSE_DEVICE DirectAccess(const AllReduceParams& params, Shared& shared) : params_(params), shared_(shared) {
    for (u32 i = ptx::thread_index(); i < kDirectTensors * kRanks; i += ptx::thread_count()) {
      const u32 tensor = i / kRanks;
      const bool direct = (params.direct >> tensor & 1) != 0;
      shared.offset[tensor][i % kRanks] = direct ? ptx::load_weak(params.peer_offset[tensor] + i % kRanks) : 0;
    }
    if (ptx::thread_index() == 0) shared.failed = 0;
  }

  COMMFUSE_DEVICE bool has(Direct tensor) const { return (params_.direct & bit_of(tensor)) != 0; }
  /// What leads from an address in this rank's tensor to the same place in that of `rank`.
  COMMFUSE_DEVICE u64 offset(Direct tensor, u32 rank) const { return shared_.offset[static_cast<u32>(tensor)][rank]; }
  COMMFUSE_DEVICE const Vec16* in_of(const Vec16* own, u32 rank) const {
    return reinterpret_cast<const Vec16*>(reinterpret_cast<u64>(own) + offset(Direct::kIn, rank));
  }

  /// Once per call, before anything is waited for.
  COMMFUSE_DEVICE void announce_start(const Call& call) const {
    if (ptx::block_index() != 0) return;
    for (u32 peer = ptx::thread_index(); peer < kRanks; peer += ptx::thread_count()) {
      if (peer != params_.rank) ptx::store_release_sys(&call.signals_of(peer)->started[params_.rank], epoch(call));
    }
  }
  /// By all threads of each block. False, for all of them, if the call has failed: then nothing of the peers' may be
  /// touched.
  COMMFUSE_DEVICE bool wait_for_start(Call& call) const {
    ptx::block_barrier();  // shared_ is filled
    if (!wait(call.signals_of(params_.rank)->started, call)) shared_.failed = 1;
    ptx::block_barrier();
    return shared_.failed == 0;
  }
  /// By all threads of each block, last of all; ends the call.
  COMMFUSE_DEVICE void finish(Call& call) const {
    ptx::block_barrier();
    if (ptx::thread_index() == 0) shared_.is_last = call.arrive_done() ? 1 : 0;
    ptx::block_barrier();
    if (shared_.is_last == 0) return;
    if (!call.has_failed()) {
      for (u32 peer = ptx::thread_index(); peer < kRanks; peer += ptx::thread_count()) {
        if (peer != params_.rank) ptx::store_release_sys(&call.signals_of(peer)->finished[params_.rank], epoch(call));
      }
      wait(call.signals_of(params_.rank)->finished, call);
    }
    ptx::block_barrier();
    if (ptx::thread_index() == 0) call.finish(0);
  }

 private:
  static COMMFUSE_DEVICE i64 epoch(const Call& call) { return static_cast<i64>(call.epoch()); }
  /// This thread's share of the peers.
  COMMFUSE_DEVICE bool wait(const i64 (&signal)[kMaxWorldSize], Call& call) const {
    for (u32 peer = ptx::thread_index(); peer < kRanks; peer += ptx::thread_count()) {
      if (peer == params_.rank) continue;
      for (u32 rounds = 0; ptx::load_acquire_sys(&signal[peer]) < epoch(call);) {
        if (call.should_give_up(rounds, peer, 0)) return false;
      }
    }
    return true;
  }

  const AllReduceParams& params_;
  Shared& shared_;
};

/// Destinations of results (epilogue.cuh). The owner of a token writes into its own tensors and into the registered
/// ones of all peers ...
template <u32 kRanks>
class EveryRanksTensors {
 public:
  COMMFUSE_DEVICE EveryRanksTensors(const DirectAccess<kRanks>& access, u32 rank) : access_(access), rank_(rank) {}
  template <class StoreAt>
  COMMFUSE_DEVICE void operator()(Direct tensor, StoreAt store_at) const {
    store_at(0);
    if (!access_.has(tensor)) return;
    COMMFUSE_UNROLL
    for (u32 step = 1; step < kRanks; ++step) {
      const u32 peer = rank_ + step;
      store_at(access_.offset(tensor, peer < kRanks ? peer : peer - kRanks));
    }
  }

 private:
  const DirectAccess<kRanks>& access_;
  u32 rank_;
};

/// ... and a rank that receives a finished row writes only what the owner could not reach.
template <u32 kRanks>
class OrdinaryTensors {
 public:
  COMMFUSE_DEVICE explicit OrdinaryTensors(const DirectAccess<kRanks>& access) : access_(access) {}
  template <class StoreAt>
  COMMFUSE_DEVICE void operator()(Direct tensor, StoreAt store_at) const {
    if (!access_.has(tensor)) store_at(0);
  }

 private:
  const DirectAccess<kRanks>& access_;
};

}  // namespace commfuse::device
