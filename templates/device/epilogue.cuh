// What happens to a token's sum, in two stages.
//
// Stage 1 (complete_row) needs the whole row: it adds the residual and finds the row's facts, up to four numbers that
// the rest needs (the inverse root mean square, a maximum, ...). Stage 2 (write) treats every vector by itself, given
// the facts. In one-shot each rank does both for every token. In two-shot the token's owner does stage 1 once and sends
// the row with its facts; every rank does stage 2. The arithmetic is the same, so the bits are.
//
// Every step rounds to nearest; nothing is approximated or contracted, so the CPU computes the same bits.
#pragma once

#include "device/exponential.cuh"
#include "device/params.cuh"
#include "device/partition.cuh"
#include "device/quant.cuh"
#include "device/row_reduce.cuh"
#include "device/vector.cuh"

namespace commfuse::device {

/// 1 / sqrt(sum of squares / count + eps).
COMMFUSE_DEVICE float inverse_rms(float sum_of_squares, float inverse_count, float eps) {
  return ptx::div_rn(1.0f, ptx::sqrt_rn(ptx::add_rn(ptx::mul_rn(sum_of_squares, inverse_count), eps)));
}

/// Whether stage 1 adds the residual (a scattered one is in the sum already).
template <class Config>
constexpr bool kAddsResidual = Config::kResidual && !Config::kResidualScattered;

/// Where the outputs of stage 2 go: into this rank's tensors. A destination is asked for each output with a function
/// that stores at a given distance from this rank's tensor; the direct form (direct.cuh) has destinations that also
/// reach the peers' tensors.
struct OwnTensors {
  template <class StoreAt>
  COMMFUSE_DEVICE void operator()(Direct, StoreAt store_at) const {
    store_at(0);
  }
};

template <bool kQuantizes, class Config>
struct ScaleLanes {
  static constexpr u32 kValue = 0;
};
template <class Config>
struct ScaleLanes<true, Config> {
  static constexpr u32 kValue = RowQuantizer<Config>::kHasBlocks ? RowQuantizer<Config>::kBlockLanes : 0;
};

template <class Config>
class Epilogue {
 public:
  static constexpr Type kType = Config::kType;
  static constexpr u32 kN = Elements<kType>::kPerVector;
  static constexpr u32 kRowVectors = Config::kHiddenSize / kN;
  using Map = RowMap<kRowVectors, Config::kThreads, Config::kCluster>;
  static constexpr u32 kCount = Map::kPerThread;
  static constexpr bool kQuantizes = Config::kQuantizer != Quantizer::kNone;
  static constexpr bool kNeedsRowMaximum = Config::kQuantizer == Quantizer::kFp8Token;
  /// Lanes that share a scale of the quantised row; 0 where there is none, or one for more than a warp's columns.
  static constexpr u32 kQuantizerLanes = ScaleLanes<kQuantizes, Config>::kValue;
  /// Whether stage 2 needs facts at all.
  static constexpr bool kHasFacts = Config::kNorm != Norm::kNone;
  using Reducer = RowReducer<Map>;
  using Shared = typename Reducer::Shared;

  COMMFUSE_DEVICE Epilogue(const AllReduceParams& params, Shared& shared)
      : params_(params), own_rows_(params.tokens), reducer_(shared), quantizer_(quant_tensors(params)) {
    if constexpr (kHoldWeights) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) held_gamma_[k] = load_weight(params.gamma, k);
    }
  }

  /// What this rank contributes to the sum: its input, plus the residual where the residual is scattered and the row is
  /// this rank's own.
  COMMFUSE_DEVICE Vec16 contribution(u32 token, u32 k) const {
    return Map::has(k) ? with_own_residual(token, k, load_once(input(token, k))) : zero();
  }
  /// The same for an input that has been loaded.
  COMMFUSE_DEVICE Vec16 with_own_residual(u32 token, u32 k, const Vec16& in) const {
    if constexpr (Config::kResidual && Config::kResidualScattered) {
      if (Map::has(k) && own_rows_.owns(params_.rank, token)) {
        return add<kType>(in, load_once(params_.residual_in + row_index(token - own_begin(), k)));
      }
    }
    return in;
  }

  /// Where the k-th vector of a row of this rank's input lies.
  COMMFUSE_DEVICE const Vec16* input(u32 token, u32 k) const { return params_.in + row_index(token, k); }

  /// The vectors of a row that are added to the sum, read early because they do not depend on the peers.
  struct Prefetched {
    Vec16 residual[kAddsResidual<Config> ? kCount : 1];
    Vec16 add[Config::kAdd ? kCount : 1];
  };
  COMMFUSE_DEVICE Prefetched prefetch(u32 token) const {
    Prefetched fetched{};
    if constexpr (kAddsResidual<Config>) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        fetched.residual[k] = Map::has(k) ? load_once(params_.residual_in + row_index(token, k)) : zero();
      }
    }
    if constexpr (Config::kAdd) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) {
        fetched.add[k] = Map::has(k) ? load_once(params_.add_in + row_index(token, k)) : zero();
      }
    }
    return fetched;
  }

  /// Stage 1. `y` holds the sum and becomes the row that stage 2 works on. All threads of the team call it.
  COMMFUSE_DEVICE Vec16 complete_row(u32 token, const Prefetched& fetched, Vec16 (&y)[kCount]) {
    Vec16 facts = zero();
    if constexpr (Config::kNorm == Norm::kPreAndPost) {
      const float before = row_inverse_rms(y);
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) y[k] = normalised(y[k], before, load_weight(params_.gamma_before, k));
    }
    if constexpr (Config::kAdd) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) y[k] = add<kType>(y[k], fetched.add[k]);
    }
    if constexpr (kAddsResidual<Config>) {
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) y[k] = add<kType>(y[k], fetched.residual[k]);
    }
    if constexpr (Config::kNorm == Norm::kRms || Config::kNorm == Norm::kPreAndPost || Config::kNorm == Norm::kLatent) {
      const float inverse = row_inverse_rms(y);
      facts.word[0] = ptx::bits_of(inverse);
      if constexpr (kNeedsRowMaximum) {
        float part[kCount];
        COMMFUSE_UNROLL
        for (u32 k = 0; k < kCount; ++k) {
          float x[kN];
          unpack<kType>(normalised(y[k], inverse, gamma(k)), x);
          part[k] = Map::has(k) ? absolute_maximum(x) : 0.0f;
        }
        facts.word[1] = ptx::bits_of(reducer_.template reduce<Max>(part));
      }
    } else if constexpr (Config::kNorm == Norm::kAttentionResidual) {
      facts = mixture_facts(token, y);
    }
    return facts;
  }

  /// What stage 2 makes of one vector.
  struct Finished {
    Vec16 y;
    Vec16 result;               ///< where there is a norm
    QuantizedVector quantized;  ///< where there is a quantizer
  };

  /// Stage 2 for the k-th vector of this thread, in two steps: computing it ... All lanes of a warp call it together.
  COMMFUSE_DEVICE Finished finish(u32 token, u32 k, const Vec16& y, const Vec16& facts) const {
    Finished finished{y, zero(), {{0, 0}, 0}};
    if constexpr (Config::kNorm != Norm::kNone) {
      finished.result = result_of(token, k, y, facts);
      quantize(k, finished, ptx::float_of(facts.word[1]));
    }
    return finished;
  }
  /// From the result; `row_maximum` counts for kFp8Token only.
  COMMFUSE_DEVICE void quantize(u32 k, Finished& finished, float row_maximum) const {
    if constexpr (kQuantizes) {
      float x[kN];
      unpack<kType>(Map::has(k) ? finished.result : zero(), x);
      finished.quantized = quantizer_.encode(x, row_maximum);
    }
  }

  /// ... and storing it.
  template <class Destination>
  COMMFUSE_DEVICE void store(u32 token, u32 k, const Finished& finished, const Destination& destination) const {
    if (!Map::has(k)) return;
    const u64 index = row_index(token, k);
    const bool own_row = own_rows_.owns(params_.rank, token);
    const u64 own_index = row_index(token - own_begin(), k);
    const auto store_row = [&](Direct tensor, Vec16* address, const Vec16& v) {
      destination(tensor, [&](u64 offset) { store_last(shifted(address, offset), v); });
    };
    if constexpr (Config::kResidual) {
      if constexpr (Config::kResidualScattered) {
        if (own_row) store_last(params_.residual_out + own_index, finished.y);
      } else {
        store_row(Direct::kResidualOut, params_.residual_out + index, finished.y);
      }
    }
    if constexpr (Config::kNorm == Norm::kNone) {
      store_row(Direct::kOut, params_.out + index, finished.y);
    } else if constexpr (Config::kNorm == Norm::kLatent) {
      store_row(Direct::kOut, params_.out + index, finished.result);
    } else if constexpr (Config::kNormOut) {
      store_row(Direct::kNormOut, params_.norm_out + index, finished.result);
    } else if constexpr (Config::kNormOutOptional) {
      if (params_.norm_out != nullptr) store_row(Direct::kNormOut, params_.norm_out + index, finished.result);
    }
    if constexpr (Config::kPartialOut) {
      if (own_row) store_last(params_.partial_norm_out + own_index, finished.result);
    }
    if constexpr (kQuantizes) store_quantized(token, k, finished.quantized, destination);
  }
  template <class Destination>
  COMMFUSE_DEVICE void store_quantized(u32 token, u32 k, const QuantizedVector& v,
                                       const Destination& destination) const {
    const u32 vector = Map::vector(k);
    destination(Direct::kQuantOut, [&](u64 offset) { quantizer_.store_values(token, vector, v, offset); });
    if constexpr (Config::kQuantizer != Quantizer::kFp8Tensor) {
      if (!quantizer_.stores_scale(vector)) return;
      destination(Direct::kScaleOut, [&](u64 offset) { quantizer_.store_scale(token, vector, v.scale, offset); });
    }
  }

  /// Both steps, into this rank's tensors.
  COMMFUSE_DEVICE void write(u32 token, u32 k, const Vec16& y, const Vec16& facts) const {
    store(token, k, finish(token, k, y, facts), OwnTensors{});
  }

  /// Once per call, by all threads: the scales of rows and blocks that do not exist.
  COMMFUSE_DEVICE void write_padding() const {
    if constexpr (kQuantizes) {
      if ((params_.flags & kZeroScalePadding) == 0) return;
      quantizer_.zero_padding(params_.tokens,
                              static_cast<u64>(ptx::block_index()) * Config::kThreads + ptx::thread_index(),
                              static_cast<u64>(ptx::block_count()) * Config::kThreads);
    }
  }

 private:
  static constexpr Type kGammaType = Config::kGammaType;
  /// 16-bit rows may have fp32 weights: two vectors of them for one of the row.
  static constexpr u32 kWeightVectors = Elements<kGammaType>::kBytes / Elements<kType>::kBytes;
  static_assert(kWeightVectors >= 1, "weights are of the row's type or fp32");
  struct Weight {
    Vec16 part[kWeightVectors];
  };
  /// Few enough to stay in registers from row to row.
  static constexpr bool kHoldWeights = kHasFacts && kCount * kWeightVectors <= 4;

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

  static COMMFUSE_DEVICE QuantTensors quant_tensors(const AllReduceParams& params) {
    return {static_cast<u8*>(params.quant_out), static_cast<u8*>(params.scale_out), params.scale_factor,
            params.scale_stride};
  }
  /// With many tokens (a kernel without clusters) inputs and results must not push the rotation buffers out of the
  /// caches; with few there is room for all, and the next kernel wants the results.
  static constexpr bool kStreams = Config::kCluster == 1;
  static COMMFUSE_DEVICE Vec16 load_once(const Vec16* address) {
    return kStreams ? ptx::load_streaming(address) : ptx::load_weak(address);
  }
  static COMMFUSE_DEVICE void store_last(Vec16* address, const Vec16& v) {
    if constexpr (kStreams) {
      ptx::store_streaming(address, v);
    } else {
      ptx::store_weak(address, v);
    }
  }
  static COMMFUSE_DEVICE Vec16* shifted(Vec16* address, u64 offset) {
    return reinterpret_cast<Vec16*>(reinterpret_cast<u64>(address) + offset);
  }
  static COMMFUSE_DEVICE Vec16 zero() { return {{0, 0, 0, 0}}; }
  static COMMFUSE_DEVICE u64 row_index(u32 row, u32 k) { return static_cast<u64>(row) * kRowVectors + Map::vector(k); }
  COMMFUSE_DEVICE u32 own_begin() const { return own_rows_.begin(params_.rank); }

  static COMMFUSE_DEVICE Weight load_weight(const void* weights, u32 k) {
    Weight weight;
    const Vec16* vectors = static_cast<const Vec16*>(weights) + static_cast<u64>(Map::vector(k)) * kWeightVectors;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kWeightVectors; ++i) weight.part[i] = in_norm(k) ? ptx::load_weak(vectors + i) : zero();
    return weight;
  }
  COMMFUSE_DEVICE Weight gamma(u32 k) const {
    if constexpr (kHoldWeights) {
      return held_gamma_[k];
    } else {
      return load_weight(params_.gamma, k);
    }
  }
  static COMMFUSE_DEVICE void unpack_weight(const Weight& weight, float (&out)[kN]) {
    if constexpr (kWeightVectors == 1) {
      unpack<kType>(weight.part[0], out);
    } else {
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kN; ++i) out[i] = ptx::float_of(weight.part[i / 4].word[i % 4]);
    }
    if constexpr (Config::kWeightBias) {
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kN; ++i) out[i] = ptx::add_rn(1.0f, out[i]);
    }
  }

  /// (x * inverse rms) * weight, one rounding to the element type at the end.
  static COMMFUSE_DEVICE Vec16 normalised(const Vec16& v, float inverse, const Weight& weight) {
    float x[kN];
    float w[kN];
    unpack<kType>(v, x);
    unpack_weight(weight, w);
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kN; ++i) x[i] = ptx::mul_rn(ptx::mul_rn(x[i], inverse), w[i]);
    return pack<kType>(x);
  }

  /// Columns whose squares enter the norm.
  static constexpr u32 kNormColumns = Config::kNorm == Norm::kLatent ? Config::kLatentWidth : Config::kHiddenSize;
  static COMMFUSE_DEVICE bool in_norm(u32 k) {
    return Map::has(k) && (kNormColumns == Config::kHiddenSize || Map::vector(k) < kNormColumns / kN);
  }
  static COMMFUSE_DEVICE float sum_of_squares(const Vec16& v) {
    float x[kN];
    unpack<kType>(v, x);
    float sum = 0.0f;
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kN; ++i) sum = ptx::fma_rn(x[i], x[i], sum);
    return sum;
  }
  COMMFUSE_DEVICE float row_inverse_rms(const Vec16 (&y)[kCount]) {
    constexpr float kInverseCount = 1.0f / static_cast<float>(kNormColumns);
    float part[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) part[k] = in_norm(k) ? sum_of_squares(y[k]) : 0.0f;
    return inverse_rms(reducer_.template reduce<Sum>(part), kInverseCount, params_.eps);
  }

  COMMFUSE_DEVICE Vec16 result_of(u32 token, u32 k, const Vec16& y, const Vec16& facts) const {
    if constexpr (Config::kNorm == Norm::kAttentionResidual) {
      const Vec16 mixed = mixture(token, k, y, facts);
      if (params_.mixture_gamma == nullptr) return mixed;
      return normalised(mixed, ptx::float_of(facts.word[3]), load_weight(params_.mixture_gamma, k));
    } else if constexpr (Config::kNorm == Norm::kLatent) {
      return in_norm(k) ? normalised(y, ptx::float_of(facts.word[0]), gamma(k)) : y;
    } else {
      return normalised(y, ptx::float_of(facts.word[0]), gamma(k));
    }
  }

  // ---- attention residual: y joins a running softmax mixture of rows ------------------------------------------------
  // logit = dot(y, gamma * score weight) * inverse rms of y; with the
  // new maximum m = max(mixture_max, logit) the old mixture counts exp(mixture_max - m) and y counts exp(logit - m).
  // Facts: both counts, the new sum of weights, and the inverse rms of the result.

  COMMFUSE_DEVICE Vec16 mixture_facts(u32 token, const Vec16 (&y)[kCount]) {
    const float inverse = row_inverse_rms(y);
    float part[kCount];
    COMMFUSE_UNROLL
    for (u32 k = 0; k < kCount; ++k) {
      float x[kN];
      float g[kN];
      float s[kN];
      unpack<kType>(y[k], x);
      unpack_weight(gamma(k), g);
      unpack_plain(load_weight(params_.score_weight, k), s);
      part[k] = 0.0f;
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kN; ++i) part[k] = ptx::fma_rn(x[i], ptx::mul_rn(g[i], s[i]), part[k]);
      if (!Map::has(k)) part[k] = 0.0f;
    }
    const float logit = ptx::mul_rn(reducer_.template reduce<Sum>(part), inverse);
    const float old_maximum = ptx::load_weak(params_.mixture_max + token);
    const float maximum = ptx::max_number(old_maximum, logit);
    const float old_count = exp_of_nonpositive(ptx::add_rn(old_maximum, -maximum));
    const float count = exp_of_nonpositive(ptx::add_rn(logit, -maximum));
    const float total = ptx::fma_rn(ptx::load_weak(params_.mixture_sum + token), old_count, count);
    Vec16 facts = {{ptx::bits_of(old_count), ptx::bits_of(count), ptx::bits_of(total), 0}};
    if (params_.mixture_gamma != nullptr) {
      Vec16 mixed[kCount];
      COMMFUSE_UNROLL
      for (u32 k = 0; k < kCount; ++k) mixed[k] = mixture(token, k, y[k], facts);
      facts.word[3] = ptx::bits_of(row_inverse_rms(mixed));
    }
    return facts;
  }
  COMMFUSE_DEVICE Vec16 mixture(u32 token, u32 k, const Vec16& y, const Vec16& facts) const {
    if (!Map::has(k)) return zero();
    float x[kN];
    unpack<kType>(y, x);
    const Vec16* old = reinterpret_cast<const Vec16*>(params_.mixture) + row_index(token, k) * (kN / 4);
    COMMFUSE_UNROLL
    for (u32 i = 0; i < kN / 4; ++i) {
      const Vec16 four = ptx::load_weak(old + i);
      COMMFUSE_UNROLL
      for (u32 j = 0; j < 4; ++j) {
        const float joined = ptx::fma_rn(ptx::float_of(facts.word[1]), x[4 * i + j],
                                         ptx::mul_rn(ptx::float_of(four.word[j]), ptx::float_of(facts.word[0])));
        x[4 * i + j] = ptx::div_rn(joined, ptx::float_of(facts.word[2]));
      }
    }
    return pack<kType>(x);
  }
  static COMMFUSE_DEVICE void unpack_plain(const Weight& weight, float (&out)[kN]) {
    if constexpr (kWeightVectors == 1) {
      unpack<kType>(weight.part[0], out);
    } else {
      COMMFUSE_UNROLL
      for (u32 i = 0; i < kN; ++i) out[i] = ptx::float_of(weight.part[i / 4].word[i % 4]);
    }
  }
  const AllReduceParams& params_;
  Partition<Config::kWorldSize> own_rows_;
  Reducer reducer_;
  typename Choose<kQuantizes, Config>::Result quantizer_;
  Weight held_gamma_[kHoldWeights ? kCount : 1];
};

}  // namespace commfuse::device
