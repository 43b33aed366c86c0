// Sending any bits exactly, through slots in which one word means "empty".
//
// rotation.cuh sends 0xfffffffe for 0xffffffff, which changes a NaN's payload; a gather must not change anything. So
// the 32 vectors that the lanes of a warp hold (128 words) are sent XORed with a number c that makes none of them
// 0xffffffff, and c goes with them in a header. A word w becomes 0xffffffff for exactly one c, its complement; of the
// 129 numbers 0 to 128 the 128 words can rule out at most 128, so there always is one. c itself is at most 128, so a
// header is never empty either. XOR with the same c gives back every bit, whatever it was.
//
// Almost always no word is 0xffffffff and c is 0, which one vote finds out; 129 words with the worst values cost 129
// votes. A header is a vector: 16 bytes for 512, a thirty-second more to send.
#pragma once

#include "device/rotation.cuh"

namespace commfuse::device {

/// Number c of the warp's vectors. All lanes call it together, with zeros where they have none.
COMMFUSE_DEVICE u32 mask_of_warp(const Vec16& v) {
  if (!ptx::any_lane(!has_arrived(v))) return 0;
  for (u32 mask = 1;; ++mask) {
    bool taken = false;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < 4; ++i) taken = taken || v.word[i] == ~mask;
    if (!ptx::any_lane(taken)) return mask;
  }
}

/// Both ways.
COMMFUSE_DEVICE Vec16 masked(Vec16 v, u32 mask) {
  COMMFUSE_UNROLL
  for (u32 i = 0; i < 4; ++i) v.word[i] ^= mask;
  return v;
}

}  // namespace commfuse::device
