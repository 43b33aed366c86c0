// The second phase of a two-shot call: what the owner of a token sends to the other ranks, so that they can write their
// outputs, and where it lies in their rotation buffers.
//
// Without a scattered residual every rank needs y itself (it is residual_out), so y travels with the row's facts, and
// each rank does stage 2 of the epilogue. With a scattered residual only the owner keeps y, and what travels is
//   the norm, where it is an output (quantised outputs are made of it by the receiver),
//   else the quantised norm with its scales: half of a row or less in FP8, three eighths in FP4,
//   or, where all outputs are the owner's, nothing but the facts: the rotation (rotation.cuh) needs a sign of life.
// Facts travel once per group of 32 vectors, so that each warp finds them beside its own vectors and can empty them
// without asking other warps; so do scales, as they belong to blocks of at most 32 vectors.
//
// Quantised values and the word that means "empty": an FP8 value is never 0xff (NaN is 0x7f), so a word of four never
// is. Eight FP4 values of -6 are; they are sent as another word, and the scale that the two words of a block share, of
// which the E4M3 code needs seven bits, says so with a bit for each.
#pragma once

#include "device/direct.cuh"
#include "device/epilogue.cuh"
#include "device/gather.cuh"

namespace commfuse::device {

template <class Config, class Epilogue>
class FinishedRows {
  using Map = typename Epilogue::Map;
  static constexpr u32 kRanks = Config::kWorldSize;
  static constexpr u32 kPeers = kRanks - 1;
  static constexpr u32 kCount = Epilogue::kCount;
  static constexpr u32 kRowVectors = Epilogue::kRowVectors;

  static constexpr bool kOnlyOwnerNeedsY = Config::kResidual && Config::kResidualScattered;
  static constexpr bool kSendsQuantized = kOnlyOwnerNeedsY && !Config::kNormOut && Epilogue::kQuantizes;
  static constexpr bool kSendsNorm = kOnlyOwnerNeedsY && Config::kNormOut;
  static constexpr bool kSendsY = !kOnlyOwnerNeedsY;
  static constexpr bool kSendsVectors = kSendsNorm || kSendsY;
  static constexpr bool kSendsFacts =
      !kSendsQuantized && (kSendsNorm ? Epilogue::kNeedsRowMaximum : Epilogue::kHasFacts);
  static_assert(kSendsQuantized || kSendsVectors || kSendsFacts, "every row must be heard of");

  // Quantised rows: values, then scales, in 32-bit words; each part a whole number of vectors.
  static constexpr u32 kValueWords = Config::kQuantizer == Quantizer::kFp4 ? 1 : 2;  // of a vector
  static constexpr u32 kValueVectors = (kRowVectors * kValueWords + 3) / 4;
  static constexpr u32 kScaleLanes = Epilogue::kQuantizerLanes;  // that share a scale; 0: none is sent
  static constexpr u32 kScaleVectors =
      kScaleLanes == 0 ? 0 : (kRowVectors / (kScaleLanes + (kScaleLanes == 0)) + 3) / 4;

 public:
  /// Of one row in a rotation buffer.
  static constexpr u32 kSentVectors = kSendsQuantized
                                          ? kValueVectors + kScaleVectors
                                          : (kSendsVectors ? kRowVectors : 0) + (kSendsFacts ? Map::kGroups : 0);

  /// The owner's side: sends a row to the slot that each peer has for it. By all lanes of a warp together, also by
  /// those that `may_send` nothing.
  template <class SlotOf>
  static COMMFUSE_DEVICE void send(const typename Epilogue::Finished (&row)[kCount], const Vec16& facts, bool may_send,
                                   SlotOf slot_of) {
    if constexpr (kSendsQuantized) {
      u32 scale[kCount];
      QuantizedVector value[kCount];
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        value[k] = row[k].quantized;
        scale[k] = value[k].scale;
        if constexpr (Config::kQuantizer == Quantizer::kFp4) {
          const u32 full = value[k].word[0] == kEmptyWord ? kFullWord << ptx::thread_index() % 2 : 0;
          scale[k] |= full | ptx::shuffle_xor(full, 1);
          value[k].word[0] = ptx::min_u32(value[k].word[0], kInsteadOfEmptyWord);
        }
      }
      COMMFUSE_UNROLL
      for (u32 step = 1; step < kRanks && may_send; ++step) {
        Vec16* const slot = slot_of(step);
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          if (!Map::has(k)) continue;
          if constexpr (kValueWords == 1) {
            ptx::store_relaxed_sys(values_of(slot) + Map::vector(k), value[k].word[0]);
          } else {
            ptx::store_relaxed_sys(values_of(slot) + Map::vector(k),
                                   static_cast<u64>(value[k].word[1]) << 32 | value[k].word[0]);
          }
          if constexpr (kScaleLanes != 0) {
            if (Map::vector(k) % kScaleLanes == 0) ptx::store_relaxed_sys(scale_of(slot, k), scale[k]);
          }
        }
      }
    } else {
      const Vec16 sent_facts = sendable(facts);
      Vec16 sent[kCount];
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) sent[k] = sendable(kSendsNorm ? row[k].result : row[k].y);
      COMMFUSE_UNROLL
      for (u32 step = 1; step < kRanks && may_send; ++step) {
        Vec16* const slot = slot_of(step);
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          if (kSendsVectors && Map::has(k)) ptx::store_relaxed_sys(slot + Map::vector(k), sent[k]);
          if (kSendsFacts && is_first_lane() && Map::group(k) < Map::kGroups) {
            ptx::store_relaxed_sys(facts_of(slot, k), sent_facts);
          }
        }
      }
    }
  }

  /// The other ranks' side: waits for one row of each peer and writes the outputs. `slot_of(step)` is null where that
  /// peer sends none, `token_of(step)` the row's number. The slots are emptied.
  template <class SlotOf, class TokenOf, class PeerOf, class Destination>
  static COMMFUSE_DEVICE void receive_row_of_each(const Epilogue& epilogue, Call& call, SlotOf slot_of,
                                                  TokenOf token_of, PeerOf peer_of, const Destination& destination) {
    if constexpr (kSendsQuantized) {
      receive_quantized(epilogue, call, slot_of, token_of, peer_of, destination);
    } else {
      receive_vectors(epilogue, call, slot_of, token_of, peer_of, destination);
    }
  }

 private:
  static constexpr u32 kFullWord = 1u << 8;  ///< beside a scale's code: the even lane's word is all ones; << 1: the odd

  template <u32 kWords, class Unused = void>
  struct ValueOf {
    using Type = u64;
  };
  template <class Unused>
  struct ValueOf<1, Unused> {
    using Type = u32;
  };
  using Value = typename ValueOf<kValueWords>::Type;

  static COMMFUSE_DEVICE bool is_first_lane() { return ptx::thread_index() % kWarp == 0; }
  static COMMFUSE_DEVICE Vec16* facts_of(Vec16* slot, u32 k) {
    return slot + (kSendsVectors ? kRowVectors : 0) + Map::group(k);
  }
  static COMMFUSE_DEVICE Value* values_of(Vec16* slot) { return reinterpret_cast<Value*>(slot); }
  static COMMFUSE_DEVICE u32* scale_of(Vec16* slot, u32 k) {
    return reinterpret_cast<u32*>(slot + kValueVectors) + Map::vector(k) / kScaleLanes;
  }

  template <class SlotOf, class TokenOf, class PeerOf, class Destination>
  static COMMFUSE_DEVICE void receive_vectors(const Epilogue& epilogue, Call& call, SlotOf slot_of, TokenOf token_of,
                                              PeerOf peer_of, const Destination& destination) {
    constexpr u32 kEach = (kSendsVectors ? 1 : 0) + (kSendsFacts ? 1 : 0);
    constexpr u32 kChunk = kPeers == 0 ? 1 : kSendersAtATime<kPeers, kCount * kEach>;
    COMMFUSE_NO_UNROLL
    for (u32 base = 0; base < kPeers; base += kChunk) {
      Vec16* wanted[kChunk * kCount * kEach];
      Vec16 v[kChunk * kCount * kEach];
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        Vec16* const slot = base + j < kPeers ? slot_of(base + j + 1) : nullptr;
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          const u32 i = (j * kCount + k) * kEach;
          if constexpr (kSendsVectors) wanted[i] = slot != nullptr && Map::has(k) ? slot + Map::vector(k) : nullptr;
          if constexpr (kSendsFacts) {
            wanted[i + kEach - 1] = slot != nullptr && Map::group(k) < Map::kGroups ? facts_of(slot, k) : nullptr;
          }
        }
      }
      receive(wanted, v, call, token_of(base + 1), [&](u32 i) { return peer_of(base + i / (kCount * kEach) + 1); });
      // Every lane has read the facts before one of them empties the slot.
      ptx::warp_barrier();
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        if (base + j >= kPeers || slot_of(base + j + 1) == nullptr) continue;
        const u32 token = token_of(base + j + 1);
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          const u32 i = (j * kCount + k) * kEach;
          const Vec16 facts = kSendsFacts ? v[i + kEach - 1] : Vec16{{0, 0, 0, 0}};
          if constexpr (kSendsNorm) {
            typename Epilogue::Finished finished{{{0, 0, 0, 0}}, v[i], {{0, 0}, 0}};
            epilogue.quantize(k, finished, ptx::float_of(facts.word[1]));
            epilogue.store(token, k, finished, destination);
          } else if constexpr (kSendsY) {
            epilogue.store(token, k, epilogue.finish(token, k, v[i], facts), destination);
          }
          if (kSendsVectors && wanted[i] != nullptr) make_empty(wanted[i]);
          if (kSendsFacts && is_first_lane() && wanted[i + kEach - 1] != nullptr) make_empty(wanted[i + kEach - 1]);
        }
      }
    }
  }

  template <class SlotOf, class TokenOf, class PeerOf, class Destination>
  static COMMFUSE_DEVICE void receive_quantized(const Epilogue& epilogue, Call& call, SlotOf slot_of, TokenOf token_of,
                                                PeerOf peer_of, const Destination& destination) {
    constexpr u32 kChunk = kPeers == 0 ? 1 : kSendersAtATime<kPeers, kCount>;
    COMMFUSE_NO_UNROLL
    for (u32 base = 0; base < kPeers; base += kChunk) {
      Value* wanted[kChunk * kCount];
      Value value[kChunk * kCount];
      u32* wanted_scale[kChunk * kCount];
      u32 scale[kChunk * kCount];
      COMMFUSE_UNROLL
      for (u32 j = 0; j < kChunk; ++j) {
        Vec16* const slot = base + j < kPeers ? slot_of(base + j + 1) : nullptr;
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          const bool sent = slot != nullptr && Map::has(k);
          wanted[j * kCount + k] = sent ? values_of(slot) + Map::vector(k) : nullptr;
          wanted_scale[j * kCount + k] = nullptr;
          if constexpr (kScaleLanes != 0) {
            if (sent) wanted_scale[j * kCount + k] = scale_of(slot, k);
          }
          scale[j * kCount + k] = 0;
        }
      }
      const auto sender = [&](u32 i) { return peer_of(base + i / kCount + 1); };
      receive(wanted, value, call, token_of(base + 1), sender);
      if constexpr (kScaleLanes != 0) receive(wanted_scale, scale, call, token_of(base + 1), sender);
      // Every lane has read the scales before one of them empties the slot.
      ptx::warp_barrier();
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kChunk * kCount; ++i) {
        if (wanted[i] == nullptr) continue;
        const u32 k = i % kCount;
        QuantizedVector v{{static_cast<u32>(value[i]), 0}, scale[i]};
        if constexpr (kValueWords == 2) v.word[1] = static_cast<u32>(value[i] >> 32);
        if constexpr (Config::kQuantizer == Quantizer::kFp4) {
          if ((scale[i] & kFullWord << ptx::thread_index() % 2) != 0) v.word[0] = kEmptyWord;
          v.scale = scale[i] & (kFullWord - 1);
        }
        epilogue.store_quantized(token_of(base + i / kCount + 1), k, v, destination);
        make_empty(wanted[i]);
        if constexpr (kScaleLanes != 0) {
          if (Map::vector(k) % kScaleLanes == 0) make_empty(wanted_scale[i]);
        }
      }
    }
  }
};

}  // namespace commfuse::device
