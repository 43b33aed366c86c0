// One call on the GPU: which rotation buffer it uses, how long it waits, how it ends.
//
// How the kernels of a group end together. A waiting thread gives up for one of four reasons: another thread of its
// rank has failed (Control::failed), its host has aborted (HostMailbox::abort), a peer says that all shall stop
// (PeerSignals::stop, which the host of an aborted rank writes, and an announcement that finds two calls at once), or
// its deadline has passed. The first thread of a rank that fails describes the failure in the mailbox. Nobody passes on
// what it heard: whoever says stop says it to all. A deadline is not passed on either, since the others wait for the
// same rank, have deadlines of their own and should name whom they miss.
#pragma once

#include "device/params.cuh"
#include "device/ptx.cuh"

namespace commfuse::device {

/// Rounds of a polling loop between two looks at the clock and at the abort word (which lies in host memory).
constexpr u32 kRoundsPerCheck = 256;
/// PeerSignals::stop as it is filled in the beginning.
constexpr u32 kNobodyStopped = 0xffffffffu;

/// What every kernel begins with. Nothing is read before this: inputs, weights and control words may all be written by
/// the kernels before.
COMMFUSE_DEVICE void begin_kernel(const AllReduceParams& params) {
  ptx::wait_for_predecessors();
  // A dependent waits for our completion before it touches data, so it may start at once; without the flag it starts
  // when this grid ends.
  if (params.flags & kTriggerEarly) ptx::release_dependents();
}

/// What a thread knows of the running call. Every thread reads the control structure itself (one broadcast access)
/// rather than through shared memory: no barrier lies between the start of the kernel and its first push.
class Call {
 public:
  /// Returns false if the call must end at once (the workspace has stopped, or the call was prepared for another
  /// generation): to all threads of the call or to none, because what decides does not change while it runs. Part of a
  /// block or cluster that left would be missed by shuffles and by writes into its shared memory. A failure that
  /// happens meanwhile therefore does not end the call here; the call goes through all its steps without waiting.
  COMMFUSE_DEVICE bool begin(const AllReduceParams& params) {
    params_ = &params;
    control_ = params.control;
    mailbox_ = params.mailbox;
    timeout_ns_ = params.timeout_ns;
    operation_ = params.operation;
    const Vec16 first = ptx::load_weak(reinterpret_cast<const Vec16*>(control_));
    const Vec16 second = ptx::load_weak(reinterpret_cast<const Vec16*>(control_) + 1);
    epoch_ = first.word[0] | static_cast<u64>(first.word[1]) << 32;
    dirty_bytes_ = first.word[2] | static_cast<u64>(first.word[3]) << 32;
    const u32 failed = second.word[1];
    const u32 generation = second.word[2];
    const u32 stopped = second.word[3];
    gave_up_ = failed != 0;
    deadline_ns_ = 0;
    if (stopped != 0) return false;
    if (generation != params.generation) {
      fail(DeviceStatus::kStale, params.rank, 0);
      return false;
    }
    return true;
  }

  COMMFUSE_DEVICE u64 epoch() const { return epoch_; }
  COMMFUSE_DEVICE u64 timeout_ns() const { return timeout_ns_; }
  /// Bytes that the previous call's peers wrote into the buffer that this call clears.
  COMMFUSE_DEVICE u64 dirty_bytes() const { return dirty_bytes_; }
  /// This thread holds vectors that never arrived: nothing that it makes of them may be sent.
  COMMFUSE_DEVICE bool gave_up() const { return gave_up_; }

  /// Tells that this block's threads have all read the control structure. Call it after a block barrier, from one
  /// thread. The answer of the atomic is needed only in finish(), so its latency is hidden behind the wait for the
  /// peers.
  COMMFUSE_DEVICE void arrive() { ticket_ = ptx::fetch_add_relaxed_gpu(&control_->arrived, 1); }

  /// For kernels whose last block must know that all others are done: counts this block as done, with everything that
  /// its threads did before a block barrier. True in the last block; only there may finish() be called.
  COMMFUSE_DEVICE bool arrive_done() {
    ticket_ = ptx::fetch_add_acq_rel_gpu(&control_->arrived, 1);
    return ticket_ == ptx::block_count() - 1;
  }
  /// Whether any thread of the call has given up so far.
  COMMFUSE_DEVICE bool has_failed() const { return ptx::load_relaxed_sys(&control_->failed) != 0; }

  /// Prepares the control structure for the next call; same thread as arrive(), last thing it does. Exactly one block,
  /// the last to arrive, writes; by then every block has read what it overwrites, so nobody has to wait for anybody.
  COMMFUSE_DEVICE void finish(u64 dirty_bytes) {
    if (ticket_ != ptx::block_count() - 1) return;
    ptx::store_weak(&control_->dirty_bytes, dirty_bytes);
    ptx::store_weak(&control_->arrived, 0u);
    // A failure that this thread did not see is seen by all threads when the next call begins.
    if (gave_up_) ptx::store_weak(&control_->stopped, 1u);
    ptx::store_weak(&control_->epoch, epoch_ + 1);
  }

  /// To be called in every fruitless round of a polling loop. True: stop waiting, the call has failed.
  COMMFUSE_DEVICE bool should_give_up(u32& rounds, u32 awaited_rank, u32 token) {
    ptx::spin();
    if (++rounds % kRoundsPerCheck != 0) return gave_up_;
    const u64 now = ptx::time_ns();
    if (deadline_ns_ == 0) deadline_ns_ = now + timeout_ns_;
    if (ptx::load_relaxed_sys(&control_->failed) != 0) {
      gave_up_ = true;
    } else if (ptx::load_relaxed_sys(&mailbox_->abort) != 0) {
      fail(DeviceStatus::kAborted, awaited_rank, token);
    } else if (const u32 stop = ptx::load_relaxed_sys(&signals_of(params_->rank)->stop); stop != kNobodyStopped) {
      fail(static_cast<DeviceStatus>(stop >> kStopRankBits), stop % (1u << kStopRankBits), token);
    } else if (now > deadline_ns_) {
      fail(DeviceStatus::kTimeout, awaited_rank, token);
    }
    return gave_up_;
  }

  COMMFUSE_DEVICE PeerSignals* signals_of(u32 rank) const {
    return reinterpret_cast<PeerSignals*>(params_->peer_buffer[rank] + 3 * params_->rotation_bytes);
  }

  /// The first failure of the rank describes itself in the mailbox; the status is written last.
  COMMFUSE_DEVICE void fail(DeviceStatus status, u32 awaited_rank, u32 token) {
    if (is_first_to_fail(status)) describe(status, awaited_rank, token);
  }
  /// kMismatch: `field` as in HostMailbox.
  COMMFUSE_DEVICE void fail_mismatch(u32 other_rank, u32 field, u32 own_value, u32 other_value) {
    if (!is_first_to_fail(DeviceStatus::kMismatch)) return;
    ptx::store_relaxed_sys(&mailbox_->field, field);
    ptx::store_relaxed_sys(&mailbox_->own_value, own_value);
    ptx::store_relaxed_sys(&mailbox_->other_value, other_value);
    describe(DeviceStatus::kMismatch, other_rank, 0);
  }

 private:
  COMMFUSE_DEVICE bool is_first_to_fail(DeviceStatus status) {
    gave_up_ = true;
    return ptx::compare_and_swap_sys(&control_->failed, 0, static_cast<u32>(status)) == 0;
  }
  COMMFUSE_DEVICE void describe(DeviceStatus status, u32 awaited_rank, u32 token) {
    ptx::store_relaxed_sys(&mailbox_->awaited_rank, awaited_rank);
    ptx::store_relaxed_sys(&mailbox_->operation, operation_);
    ptx::store_relaxed_sys(&mailbox_->token, token);
    ptx::store_relaxed_sys(&mailbox_->epoch_low, static_cast<u32>(epoch_));
    ptx::store_relaxed_sys(&mailbox_->epoch_high, static_cast<u32>(epoch_ >> 32));
    ptx::fence_sys();
    ptx::store_relaxed_sys(&mailbox_->status, static_cast<u32>(status));
  }

  const AllReduceParams* params_;
  Control* control_;
  HostMailbox* mailbox_;
  u64 timeout_ns_;
  u64 deadline_ns_;
  u64 epoch_;
  u64 dirty_bytes_;
  u32 operation_;
  u32 ticket_;
  bool gave_up_;
};

}  // namespace commfuse::device
