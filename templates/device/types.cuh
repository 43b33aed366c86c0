// Fixed-width names and the 16-byte vector that every global access of a kernel moves. No CUDA or standard header is
// included here or anywhere in templates/: NVRTC alone compiles these files, and so does the host compiler (the
// parameter block is shared with the host; the simulator compiles everything).
#pragma once

/// For functions that the host uses too.
#ifdef __CUDACC__
#define COMMFUSE_SHARED __host__ __device__ constexpr
#else
#define COMMFUSE_SHARED constexpr
#endif

namespace commfuse::device {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "widths that the parameter block relies on");

/// Four 32-bit words in one 16-byte aligned access. Word 0 is the lowest address.
struct alignas(16) Vec16 {
  u32 word[4];
};

constexpr u32 kVectorBytes = 16;

/// Element types, with the numbers of commfuse::DataType (include/commfuse/spec.hpp).
enum class Type : int { kFp16 = 0, kBf16 = 1, kFp32 = 2 };

/// What is computed from y, the sum of all ranks' inputs (plus the residual, where there is one).
enum class Norm : int {
  kNone = 0,               ///< nothing: y is the result
  kRms = 1,                ///< RMSNorm(y) * gamma
  kPreAndPost = 2,         ///< the sum is normalised before the residual is added, and the result again
  kAttentionResidual = 3,  ///< y joins a running softmax mixture, which is the result (and may be normalised)
  kLatent = 4,             ///< the first kLatentWidth columns are normalised over themselves, the others are y
};

/// How the normalised row is quantised (quant.cuh).
enum class Quantizer : int {
  kNone = -1,
  kFp8Tensor = 0,  ///< one scale that is given: q = e4m3(x * (1 / scale_factor))
  kFp8Block = 1,   ///< 128 columns: scale = max(amax, 1e-10) / 448, q = e4m3(x * (1 / scale))
  kFp8Token = 2,   ///< a row: scale = max(amax / 448, 2^-9 / 448), q = e4m3(x / scale)
  kFp8Group = 3,   ///< a group: scale = the power of two not below max(amax / 448, 1e-10), q = e4m3(x / scale)
  kFp4 = 4,        ///< 16 columns, two-level: scale = e4m3(G * (amax / 6)), q = e2m1(x * (G / scale)), G = scale_factor
};

// The constants that the generator writes for every kernel (runtime/generator.cpp):
//   struct Config {
//     static constexpr u32 kWorldSize = 8;
//     static constexpr u32 kHiddenSize = 8192;
//     static constexpr Type kType = Type::kBf16;
//     static constexpr bool kFp32Accumulate = true;
//     static constexpr Norm kNorm = Norm::kRms;
//     static constexpr bool kAdd = false;                // add_in is added before the residual
//     static constexpr bool kResidual = true;            // y = sum + residual
//     static constexpr bool kResidualScattered = false;  // each rank holds the residual of its own rows only
//     static constexpr bool kNormOut = true;             // writes the result for all rows
//     static constexpr bool kNormOutOptional = false;    // the same, if the call has a place for it
//     static constexpr bool kPartialOut = false;         // writes the result for this rank's rows
//     static constexpr Quantizer kQuantizer = Quantizer::kNone;                     // quant.cuh
//     static constexpr ScaleLayout kScaleLayout = ScaleLayout::kSwizzled128x4;     // kFp4
//     static constexpr u32 kGroupColumns = 128;          // kFp8Group
//     static constexpr Type kGammaType = Type::kBf16;
//     static constexpr bool kWeightBias = false;         // the weight is 1 + gamma
//     static constexpr u32 kLatentWidth = 0;             // kLatent
//     static constexpr u32 kThreads = 128;               // of a block
//     static constexpr u32 kCluster = 8;                 // blocks that share a token
//     static constexpr bool kDirect = false;             // two-shot that reaches into peers' registered tensors
//   };

}  // namespace commfuse::device
