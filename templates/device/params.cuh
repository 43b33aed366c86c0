// The parameter block of every kernel and the control memory of a workspace: one definition that the host and the
// device both include, with its layout asserted below.
#pragma once

#include "device/types.cuh"

namespace commfuse::device {

constexpr u32 kMaxWorldSize = 16;

/// Why a call on the GPU ended early. Stored in HostMailbox::status (0 = all is well).
enum class DeviceStatus : u32 {
  kOk = 0,
  kTimeout = 1,      ///< `awaited_rank` did not deliver within the deadline
  kAborted = 2,      ///< the host set HostMailbox::abort
  kStale = 3,        ///< the call was prepared for another generation of the workspace
  kMismatch = 4,     ///< `awaited_rank` announced another call than we did (checking mode)
  kBusy = 5,         ///< a call was announced while another one was under way (checking mode)
  kPeerAborted = 6,  ///< `awaited_rank` was aborted and says that all shall stop
  kPeerBusy = 7,     ///< `awaited_rank` met with kBusy and says that all shall stop
};

/// What a rank announces of a call before it makes it (checking mode, call_check.cuh): the words of its header, in the
/// order in which they are compared. HostMailbox::field is the first that differs.
enum CallWord : u32 {
  kGenerationWord = 0,
  kEpochLowWord = 1,
  kEpochHighWord = 2,
  kOperationWord = 3,  ///< as AllReduceParams::operation
  kDtypeWord = 4,
  kHiddenSizeWord = 5,
  kTokensWord = 6,
  kOptionsWord = 7,  ///< bits of the host (runtime/call_header.hpp)
  kWidthWord = 8,    ///< columns of a group or of the latent part; 0 where there is none
  kRowsWord = 9,     ///< how rows are divided among the ranks; 0: evenly
  kEpsWord = 10,     ///< bits of the float
  kAlgorithmWord = 11,
  kCallWords = 12,
};
/// In HostMailbox::operation: the call itself had not begun, what was waited for is the other rank's announcement.
constexpr u32 kAnnouncement = 1u << 31;
constexpr u32 kHeaderVectors = kCallWords / 4;
/// Two are needed and enough: call_check.cuh says why.
constexpr u32 kHeaderBuffers = 2;

/// Pinned host memory, one per rank: the host writes `abort`, the device reads it while it waits and writes the rest,
/// once, for the first failure (guarded by a compare-and-swap of `status`).
struct alignas(64) HostMailbox {
  u32 abort;         ///< non-zero: waiting kernels give up
  u32 status;        ///< DeviceStatus
  u32 awaited_rank;  ///< whose data was waited for
  u32 operation;     ///< AllReduceParams::operation of the call
  u32 token;         ///< the token that was waited for
  u32 epoch_low;     ///< number of the call, counted from 0 since the workspace was made
  u32 epoch_high;
  u32 field;        ///< kMismatch: CallWord
  u32 own_value;    ///< kMismatch: the word as we announced it
  u32 other_value;  ///< kMismatch: the word as `awaited_rank` announced it
};

/// Protocol state in the rank's own device memory; peers never touch it. Only kernels change it, so a captured graph
/// replays correctly. It describes the next call; the calls of one workspace never overlap.
struct alignas(64) Control {
  u64 epoch;        ///< calls completed; the rotation buffer of the next call is epoch % 3
  u64 dirty_bytes;  ///< bytes of rotation buffer (epoch + 2) % 3 that the last call's peers wrote, from its start
  u32 arrived;      ///< blocks of the running call that have read this structure
  u32 failed;       ///< DeviceStatus of the first failed call; may change while a call runs, so it only ends waits
  u32 generation;   ///< set by the host; calls carry the generation they were prepared for
  u32 stopped;      ///< non-zero after a failed call: calls return at once. Changes between calls only
  u32 checks;       ///< checking mode: announcements made; the header buffer of the next one is checks % 2
  u32 announced;    ///< checking mode: the last epoch that a call was announced for (31 bits, plus 1); 0: none
  u32 reserved[6];
};

/// Words that peers write into this rank's memory, behind its three rotation buffers (peer_buffer[rank] + 3 *
/// rotation_bytes). All of it is 0xff in the beginning, as the rotation buffers are; -1 is smaller than any number that
/// is ever sent. Words with an index have one writer, the rank whose index they bear; the numbers only ever grow.
struct alignas(128) PeerSignals {
  i64 started[kMaxWorldSize];   ///< direct calls: number of the last call whose tensors that rank lets us touch
  i64 finished[kMaxWorldSize];  ///< direct calls: number of the last call in which that rank is done with our tensors
  Vec16 header[kHeaderBuffers][kMaxWorldSize][kHeaderVectors];  ///< checking mode: what that rank announced
  u32 stop;  ///< written by any peer that was the reason to stop; waiting kernels give up
  u32 padding[31];
};

/// PeerSignals::stop is kPeerAborted or kPeerBusy above so many bits, and below them the rank that was the reason.
constexpr u32 kStopRankBits = 8;

/// The tensors of a call that direct kernels may reach in all ranks' memory.
enum class Direct : u32 { kIn, kOut, kResidualOut, kNormOut, kQuantOut, kScaleOut, kCount };
constexpr u32 kDirectTensors = static_cast<u32>(Direct::kCount);
COMMFUSE_SHARED u32 bit_of(Direct tensor) { return 1u << static_cast<u32>(tensor); }

/// Options of one call, in AllReduceParams::flags.
enum CallFlag : u32 {
  kTriggerEarly = 1u << 0,      ///< let the dependent kernel start at once
  kZeroScalePadding = 1u << 1,  ///< kFp4, kFp8Group: also write 0 to the scales of rows and blocks that do not exist
};

/// Everything an all-reduce kernel is told. Pointers are device addresses in this rank's address space, 16-byte
/// aligned; the ones a kernel does not use are null. Matrices are dense and row-major, `tokens` rows of `hidden size`
/// elements of the kernel's type unless said otherwise. "Own rows" are the rows that partition.cuh gives to this rank,
/// stored densely.
struct AllReduceParams {
  // What every kernel reads first lies together: a constant cache line that is not there costs as much as a load.
  const Vec16* in;   ///< this rank's partial sums
  Control* control;  ///< own
  u32 rank;
  u32 tokens;
  u32 flags;
  u32 generation;
  u64 rotation_bytes;              ///< size of one rotation buffer
  const Vec16* residual_in;        ///< all rows, or own rows where the residual is scattered
  const void* gamma;               ///< norm weight, [hidden size]
  HostMailbox* mailbox;            ///< own
  u64 peer_buffer[kMaxWorldSize];  ///< start of each rank's three rotation buffers; [rank] is our own
  Vec16* out;                      ///< kNone, kLatent: the result
  Vec16* residual_out;             ///< y; rows as residual_in
  Vec16* norm_out;                 ///< the normalised rows
  float eps;
  u32 operation;              ///< echoed into the mailbox
  u64 timeout_ns;             ///< longest wait for any one vector
  Vec16* partial_norm_out;    ///< the normalised rows, own ones
  void* quant_out;            ///< [tokens, hidden size] E4M3 bytes, or [tokens, hidden size / 2] bytes of E2M1 pairs
  void* scale_out;            ///< as the quantisation says
  const float* scale_factor;  ///< kFp8Tensor: the scale; kFp4: the global scale; one number
  u64 scale_stride;           ///< column-major scales: elements from one column to the next
  const void* gamma_before;   ///< kPreAndPost: weight of the norm before the residual
  const float* mixture_max;   ///< kAttentionResidual: [tokens], running maximum of the logits
  const float* mixture_sum;   ///< kAttentionResidual: [tokens], running sum of the weights
  const float* mixture;       ///< kAttentionResidual: [tokens, hidden size] fp32, running weighted sum
  const void* score_weight;   ///< kAttentionResidual: [hidden size]
  const void* mixture_gamma;  ///< kAttentionResidual: [hidden size]; null: the mixture is not normalised
  /// Direct kernels: bit_of() the tensors that lie in registered buffers, and for each of these, by rank, what to add
  /// to an address in this rank's tensor to come to the same place in that rank's; in device memory.
  u64 direct;
  const u64* peer_offset[kDirectTensors];
  const Vec16* add_in;  ///< added before the residual; rows as residual_in
};

/// Everything a reduce-scatter kernel is told. Of `common`, `in` has all rows, every other matrix this rank's own rows
/// only, and `tokens` is their number.
struct ReduceScatterParams {
  AllReduceParams common;
  u32 row_begin[kMaxWorldSize + 1];  ///< first row of each rank's run of consecutive rows; [world size]: all rows
  u32 longest;                       ///< rows of the longest run
};

/// Everything an all-gather kernel is told. Of `common`, `in` has this rank's own rows, every output all rows, `tokens`
/// is the number of all rows, and `gamma`, `eps`, `norm_out` and the quantised outputs are those of the first norm.
struct AllGatherParams {
  AllReduceParams common;
  const void* y_gamma;  ///< kDual: weight of the second norm, [kYWidth]
  Vec16* y_norm_out;    ///< kDual: rows of kYWidth columns
  u64 y_norm_stride;    ///< and the distance of two rows, in vectors
  float y_eps;
  u32 longest;                       ///< rows of the longest run
  u32 row_begin[kMaxWorldSize + 1];  ///< first row of each rank's run of consecutive rows; [world size]: all rows
  u32 reserved;
};

static_assert(sizeof(HostMailbox) == 64, "mailbox layout");
static_assert(sizeof(Control) == 64, "control layout");
static_assert(sizeof(PeerSignals) == 256 + 1536 + 128, "signal layout");
#ifndef __CUDACC_RTC__  // NVRTC has no offsetof; there the size stands for it, and the loader asks for the layout
static_assert(__builtin_offsetof(AllReduceParams, rotation_bytes) == 32, "parameter layout");
static_assert(__builtin_offsetof(AllReduceParams, peer_buffer) == 64, "parameter layout");
static_assert(__builtin_offsetof(AllReduceParams, out) == 192, "parameter layout");
static_assert(__builtin_offsetof(AllReduceParams, add_in) == 376, "parameter layout");
static_assert(__builtin_offsetof(ReduceScatterParams, row_begin) == 384, "parameter layout");
#endif
static_assert(sizeof(AllReduceParams) == 384, "parameter layout");
static_assert(sizeof(ReduceScatterParams) == 456, "parameter layout");
static_assert(sizeof(AllGatherParams) == 488, "parameter layout");

/// What the kernel that announces a call is told.
struct CallCheckParams {
  AllReduceParams call;  ///< the workspace, and `operation` with kAnnouncement; tensors are not looked at
  /// The call's header; the words of generation and epoch are filled in by the kernel.
  Vec16 header[kHeaderVectors];
};

static_assert(sizeof(CallCheckParams) == 432, "parameter layout");

}  // namespace commfuse::device
