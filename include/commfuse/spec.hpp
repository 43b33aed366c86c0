// What a kernel is (KernelSpec) and which kernels a deployment needs (Deployment).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace commfuse {

/// A family of kernels. The names (`to_string`) are those of the deployment file.
enum class Op : int {
  kAllReduce = 0,      ///< every rank has the results of all rows
  kReduceScatter = 1,  ///< each rank has the results of its own rows
  kAllGather = 2,      ///< every rank has all ranks' rows
  kCallCheck = 3,      ///< announces calls in checking mode; a deployment asks for it with "checking", not by name
};

/// What a kernel does with S, the sum of all ranks' inputs. The names are those of the deployment file, without the k
/// and in snake_case. y = S + residual_in (with "add": y = (S + add_in) + residual_in, rounded twice), n = RMSNorm(y) *
/// gamma. "Own rows" are the rows that the partition of the tokens (a balanced one, unless the call says otherwise)
/// gives to this rank. Which patterns an operation has, and by what numbers other interfaces call them, say patterns()
/// and pattern_code(). A reduce-scatter writes own rows only, and norm_out also where the pattern does not name it if
/// it is given.
enum class Pattern : int {
  kAllReduce = 0,                          ///< out = S
  kResidualRmsNorm = 1,                    ///< residual_out = y, norm_out = n
  kResidualRmsNormFp8 = 2,                 ///< residual_out, quant_out = n in E4M3 with one given scale
  kResidualRmsNormFp4 = 3,                 ///< residual_out, quant_out = n in E2M1, scale_out: one E4M3 per 16 columns
  kResidualRmsNormOutFp8 = 4,              ///< as 2, and norm_out
  kResidualRmsNormOutFp4 = 5,              ///< as 3, and norm_out
  kResidualRmsNormFp8Block = 6,            ///< residual_out, quant_out, scale_out: one fp32 per 128 columns
  kResidualRmsNormPartialOutFp8Block = 7,  ///< as 6, and partial_norm_out = n of the own rows
  kResidualRmsNormPartialOut = 8,          ///< residual_out, and partial_norm_out
  kAttnResCombine = 9,                     ///< residual_out, norm_out = y joined into a running softmax mixture
  kLatentNorm = 10,                        ///< out = S, its first latent_width columns RMS-normalised over themselves
  kResidualRmsNormFp8Token = 11,           ///< residual_out, norm_out, quant_out, scale_out: one fp32 per row
  kResidualRmsNormFp8Group = 12,      ///< residual_out, norm_out, quant_out, scale_out: UE8M0 per group_size columns
  kRmsNorm = 13,                      ///< norm_out = RMSNorm(S) * gamma, no residual
  kResidualRmsPrePostNorm = 14,       ///< y = RMSNorm(S) * gamma_before + residual_in; residual_out, norm_out = n
  kReduceScatter = 100,               ///< out = S
  kAddResidualRmsNorm = 101,          ///< with add: residual_out, norm_out
  kAddResidualRmsNormFp8Block = 102,  ///< with add: residual_out, quant_out, scale_out: one fp32 per 128 columns
  kAllGather = 200,                   ///< out = the ranks' rows one after the other, bit for bit
  kDualRmsNorm = 201,  ///< out; x_norm_out, y_norm_out: the first q_lora_rank columns and the kv_lora_rank after
                       ///< them, each RMS-normalised over itself. The columns that are left are as in out
  kDualRmsNormFp8Block = 202,  ///< as 201; quant_out, scale_out: x_norm_out in E4M3, one fp32 per 128 columns
};

/// How an all-reduce exchanges. The other operations have one way, which counts as one-shot.
enum class Algorithm : int {
  kOneShot = 0,  ///< every rank sends its whole input to every other rank and reduces all tokens
  kTwoShot = 1,  ///< a token's owner receives its row from every rank, reduces it and sends the result
  kDirect = 2,   ///< two-shot in which the owner reads and writes registered tensors of the other ranks where they lie
};

/// Arrangement of FP4 scales (templates/device/scale_layout.cuh gives the formulas).
enum class QuantLayout : int { kSwizzled128x4 = 0, kSwizzled8x4 = 1, kLinear = 2 };

enum class DataType : int { kFp16 = 0, kBf16 = 1, kFp32 = 2 };

[[nodiscard]] std::string_view to_string(Op) noexcept;
[[nodiscard]] std::string_view to_string(Pattern) noexcept;
[[nodiscard]] std::string_view to_string(Algorithm) noexcept;
[[nodiscard]] std::string_view to_string(DataType) noexcept;
[[nodiscard]] std::string_view to_string(QuantLayout) noexcept;

/// The patterns that an operation has, in the order of their codes.
[[nodiscard]] std::span<const Pattern> patterns(Op) noexcept;
/// The number of a pattern among those of its operation: for 0 to 8 the code that the TensorRT-LLM lineage of kernels
/// calls it by, in its AllReduce-, ReduceScatter- and AllGatherFusionPattern. -1 if the operation does not have it.
[[nodiscard]] int pattern_code(Op, Pattern) noexcept;
/// The reverse.
[[nodiscard]] std::optional<Pattern> pattern_of_code(Op, int code) noexcept;

/// Size of one element in bytes.
[[nodiscard]] int size_of(DataType) noexcept;

inline constexpr int kMaxWorldSize = 16;
inline constexpr int kMaxHiddenSize = 65536;

/// One kernel: everything that changes its machine code, and nothing else. A plain value.
struct KernelSpec {
  Op op = Op::kAllReduce;
  Pattern pattern = Pattern::kAllReduce;
  Algorithm algorithm = Algorithm::kOneShot;
  int world_size = 2;                      ///< 1 to 16
  int hidden_size = 0;                     ///< elements per token; rows are multiples of 16 bytes; at most 65536
  DataType dtype = DataType::kBf16;        ///< of inputs and outputs
  bool fp32_accumulate = true;             ///< one rounding after the sum instead of one per addend; no effect for fp32
  DataType gamma_dtype = DataType::kBf16;  ///< of the norm weights: dtype or fp32
  bool weight_bias = false;                ///< the weight is 1 + gamma
  bool residual_scattered = false;         ///< residual_in and residual_out hold the own rows only
  QuantLayout quant_layout = QuantLayout::kSwizzled128x4;  ///< FP4 patterns
  int group_size = 0;                                      ///< residual_rms_norm_fp8_group: columns that share a scale
  int latent_width = 0;                                    ///< latent_norm: columns that are normalised
  int q_lora_rank = 0;                                     ///< dual norms: columns of the first norm
  int kv_lora_rank = 0;                                    ///< dual norms: columns of the second one, after them
  int threads = 0;   ///< of a block; a multiple of 32, at most 1024 (see geometries)
  int cluster = 1;   ///< blocks that share one token; 1, 2, 4 or 8
  std::string arch;  ///< compilation target, as NVRTC names it: "sm_90a"

  [[nodiscard]] bool operator==(const KernelSpec&) const = default;

  /// The readable name, also the name of the entry point and of the program in compiler messages: letters, digits, `_`.
  /// Specs that differ in more than `arch` have different names.
  [[nodiscard]] std::string name() const;

  /// Canonical JSON: sorted keys, no white space, every field. Equal specs give equal text on every machine.
  [[nodiscard]] std::string to_json() const;

  /// The kernel that announces the calls of a group of that size. It has no hidden size, and one for all shapes.
  [[nodiscard]] static KernelSpec call_check(int world_size, std::string arch);

  /// Throws Error(kInvalidArgument) naming the field, its value and what is allowed.
  void validate() const;

  /// The same kernel with every field that its pattern and type do not look at set to its default, so that equal
  /// machine code has one spec. validate() accepts nothing else.
  [[nodiscard]] KernelSpec normalised() const;
};

/// The content of a deployment file (schemas/deployment.schema.json): which operations one model's engine will call.
struct Deployment {
  struct Operation {
    Op op = Op::kAllReduce;
    std::vector<Pattern> patterns;
    std::vector<Algorithm> algorithms;
    std::vector<DataType> dtypes;  ///< empty: the deployment's
    std::vector<bool> fp32_accumulate;
    std::vector<int> hidden_sizes;  ///< empty: the deployment's
    // The following count for the patterns that look at them; empty: the default of KernelSpec.
    std::vector<DataType> gamma_dtypes;  ///< empty: as the kernel's dtype
    std::vector<bool> weight_bias;
    std::vector<bool> residual_scattered;
    std::vector<QuantLayout> quant_layouts;
    std::vector<int> group_sizes;  ///< empty: 128
    std::vector<int> latent_widths;
    std::vector<int> q_lora_ranks;
    std::vector<int> kv_lora_ranks;
  };

  std::string name;
  int world_size = 0;
  int hidden_size = 0;
  DataType dtype = DataType::kBf16;
  std::int64_t max_tokens = 0;
  std::vector<std::string> arch;  ///< may be empty: the device at hand
  bool checking = false;          ///< also the kernel that WorkspaceOptions::checking needs
  std::vector<Operation> operations;

  /// Reads and validates a file of at most 1 MiB. Throws Error(kNotFound, kIo) or Error(kInvalidInput) whose cause
  /// names the JSON pointer, what was found there and what is allowed.
  [[nodiscard]] static Deployment load(const std::filesystem::path& file);
  /// As load, from text; `origin` names it in messages.
  [[nodiscard]] static Deployment parse(std::string_view text, std::string_view origin = "deployment");

  /// The kernels of this deployment for each of `archs` (else of `arch`), without repetition, in a fixed order.
  [[nodiscard]] std::vector<KernelSpec> kernels(const std::vector<std::string>& archs = {}) const;
};

}  // namespace commfuse
