// The data-is-the-flag protocol over three rotation buffers.
//
// A receiver's buffer is filled with the word 0xffffffff ("empty"). A sender stores its vectors there and nothing else:
// a 32-bit word that is no longer empty has arrived, so the payload is its own flag. No fence, no flag and no order
// between words is needed; a 16-byte store that is seen word by word does no harm, because each word is looked at.
//
// Which values can be sent. 0xffffffff is two NaNs (fp16, bf16) or one (fp32). A sender that holds exactly this word
// sends 0xfffffffe instead, still NaNs, one payload bit aside. Everything else, -0.0 and subnormals included, arrives
// bit for bit.
//
// Why three buffers are enough. Call n uses buffer n mod 3 and, on the side, empties buffer (n - 1) mod 3, the one of
// the call before. In every call every rank receives something, directly or through a token's owner, that could only be
// sent after each other rank had begun that call (the precondition each kernel must keep; it is why calls without
// tokens do not launch). A rank begins a call after its own call before has completed. So a rank that has completed
// call n knows that every rank has begun call n, hence completed call n - 1. From this:
//   - A peer writes our buffer n mod 3 in its call n, that is after it completed call n - 1, in which it received what
//     we sent in our call n - 1, which we began after our call n - 2 had completed. That call emptied buffer
//     (n - 3) mod 3 = n mod 3 of the data of call n - 3. So the buffer is empty when the peer writes.
//   - We empty buffer (n - 1) mod 3 in call n, after our call n - 1 has completed, that is after every word sent into
//     it had arrived and been read. So nothing is lost.
// With two buffers the peer's first write and our emptying could meet; with three they are one call apart.
// A call of many tokens empties its slots itself, each thread right after it has read one: the line is still in the L2,
// so emptying it costs no memory traffic, and the call after has nothing to do (dirty size 0). It is done earlier than
// the argument above needs. The control words (which buffer, how much is dirty) live in device memory and are changed
// by kernels only, so a replayed graph follows the same rotation.
#pragma once

#include "device/call.cuh"
#include "device/vector.cuh"

namespace commfuse::device {

constexpr u32 kEmptyWord = 0xffffffffu;
constexpr u32 kInsteadOfEmptyWord = 0xfffffffeu;
constexpr u32 kRotationBuffers = 3;

/// The vector as it is sent: never a word that means "empty".
COMMFUSE_DEVICE Vec16 sendable(Vec16 v) {
  COMMFUSE_UNROLL
  for (u32 i = 0; i < 4; ++i) v.word[i] = ptx::min_u32(v.word[i], kInsteadOfEmptyWord);
  return v;
}

COMMFUSE_DEVICE bool has_arrived(const Vec16& v) {
  return ptx::max_u32(ptx::max_u32(v.word[0], v.word[1]), ptx::max_u32(v.word[2], v.word[3])) != kEmptyWord;
}

COMMFUSE_DEVICE bool has_arrived(u64 v) {
  return static_cast<u32>(v) != kEmptyWord && static_cast<u32>(v >> 32) != kEmptyWord;
}
COMMFUSE_DEVICE bool has_arrived(u32 v) { return v != kEmptyWord; }

COMMFUSE_DEVICE void make_empty(Vec16* slot) {
  ptx::store_weak(slot, {{kEmptyWord, kEmptyWord, kEmptyWord, kEmptyWord}});
}
COMMFUSE_DEVICE void make_empty(u64* slot) { ptx::store_weak(slot, ~0ull); }
COMMFUSE_DEVICE void make_empty(u32* slot) { ptx::store_weak(slot, kEmptyWord); }

/// The rotation buffers of one call, as addresses.
class Rotation {
 public:
  COMMFUSE_DEVICE Rotation(const AllReduceParams& params, const Call& call) : params_(params) {
    // epoch mod 3 in 32-bit arithmetic: 2^32 mod 3 is 1.
    const u32 current = (static_cast<u32>(call.epoch()) % 3 + static_cast<u32>(call.epoch() >> 32) % 3) % 3;
    offset_ = current * params.rotation_bytes;
    const u32 previous = current == 0 ? kRotationBuffers - 1 : current - 1;
    clear_offset_ = previous * params.rotation_bytes;
  }

  /// Vector `index` of rank `owner`'s buffer of this call.
  COMMFUSE_DEVICE Vec16* slot(u32 owner, u64 index) const {
    return reinterpret_cast<Vec16*>(params_.peer_buffer[owner] + offset_) + index;
  }
  /// Vector `index` of our own buffer.
  COMMFUSE_DEVICE Vec16* own_slot(u64 index) const { return slot(params_.rank, index); }

  /// Buffers hold nothing from the rank itself: the place of `from` among the senders to `to`.
  static COMMFUSE_DEVICE u32 sender_index(u32 from, u32 to) { return from < to ? from : from - 1; }

  /// The other ranks, each rank starting with its right-hand neighbour, so that not all send to one at a time.
  template <u32 kRanks>
  COMMFUSE_DEVICE u32 peer(u32 step) const {
    const u32 rank = params_.rank + step;
    return rank < kRanks ? rank : rank - kRanks;
  }

  /// Empties what the previous call's peers wrote; this thread's share of it.
  COMMFUSE_DEVICE void clear_previous(const Call& call) const {
    Vec16* buffer = reinterpret_cast<Vec16*>(params_.peer_buffer[params_.rank] + clear_offset_);
    const u64 count = call.dirty_bytes() / kVectorBytes;
    const u64 stride = static_cast<u64>(ptx::block_count()) * ptx::thread_count();
    for (u64 i = static_cast<u64>(ptx::block_index()) * ptx::thread_count() + ptx::thread_index(); i < count;
         i += stride) {
      make_empty(buffer + i);
    }
  }

 private:
  const AllReduceParams& params_;
  u64 offset_;
  u64 clear_offset_;
};

}  // namespace commfuse::device
