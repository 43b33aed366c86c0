// Fixed-width names and the 16-byte vector that every global access of a kernel moves. No CUDA or standard header is
// included here or anywhere in templates/: NVRTC alone compiles these files, and so does the host compiler (the
// parameter block is shared with the host; the simulator compiles everything).
#pragma once

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

/// Element types and patterns, with the numbers of commfuse::DataType and commfuse::Pattern
/// (include/commfuse/spec.hpp), which document them.
enum class Type : int { kFp16 = 0, kBf16 = 1, kFp32 = 2 };
enum class Pattern : int { kAllReduce = 0, kResidualRmsNorm = 1 };

/// The constants that the generator writes for every kernel; this one shows their names.
///   struct Config {
///     static constexpr u32 kWorldSize = 8;
///     static constexpr u32 kHiddenSize = 8192;
///     static constexpr Type kType = Type::kBf16;
///     static constexpr Pattern kPattern = Pattern::kResidualRmsNorm;
///     static constexpr bool kFp32Accumulate = true;
///     static constexpr u32 kThreads = 512;   // of a block
///     static constexpr u32 kCluster = 1;     // blocks that share a token
///   };

}  // namespace commfuse::device
