// What a kernel is (KernelSpec) and which kernels a deployment needs (Deployment).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace commfuse {

/// A family of kernels. The names (`to_string`) are those of the deployment file.
enum class Op : int { kAllReduce };

/// What an all-reduce kernel does with the sum S of all ranks' inputs. Numbers 0 to 8 are the pattern codes that
/// TensorRT-LLM's lineage uses; the names are those of the deployment file, without the k and in snake_case.
enum class Pattern : int {
  kAllReduce = 0,        ///< writes out = S
  kResidualRmsNorm = 1,  ///< writes residual_out = y = S + residual_in and norm_out = RMSNorm(y) * gamma
};

enum class Algorithm : int {
  kOneShot = 0,  ///< every rank sends its whole input to every other rank and reduces all tokens
};

enum class DataType : int { kFp16 = 0, kBf16 = 1, kFp32 = 2 };

[[nodiscard]] std::string_view to_string(Op) noexcept;
[[nodiscard]] std::string_view to_string(Pattern) noexcept;
[[nodiscard]] std::string_view to_string(Algorithm) noexcept;
[[nodiscard]] std::string_view to_string(DataType) noexcept;
/// Size of one element in bytes.
[[nodiscard]] int size_of(DataType) noexcept;

inline constexpr int kMaxWorldSize = 16;
inline constexpr int kMaxHiddenSize = 65536;

/// One kernel: everything that changes its machine code, and nothing else. A plain value.
struct KernelSpec {
  Op op = Op::kAllReduce;
  Pattern pattern = Pattern::kAllReduce;
  Algorithm algorithm = Algorithm::kOneShot;
  int world_size = 2;                ///< 1 to 16
  int hidden_size = 0;               ///< elements per token; rows are multiples of 16 bytes; at most 65536
  DataType dtype = DataType::kBf16;  ///< of inputs and outputs
  bool fp32_accumulate = true;       ///< one rounding after the sum instead of one per addend; no effect for fp32
  int threads = 0;                   ///< of a block; a multiple of 32, at most 1024 (see geometries)
  int cluster = 1;                   ///< blocks that share one token; 1, 2, 4 or 8
  std::string arch;                  ///< compilation target, as NVRTC names it: "sm_90a"

  [[nodiscard]] bool operator==(const KernelSpec&) const = default;

  /// The readable name, also the name of the entry point and of the program in compiler messages: letters, digits, `_`.
  /// Specs that differ in more than `arch` have different names.
  [[nodiscard]] std::string name() const;

  /// Canonical JSON: sorted keys, no white space, every field. Equal specs give equal text on every machine.
  [[nodiscard]] std::string to_json() const;

  /// Throws Error(kInvalidArgument) naming the field, its value and what is allowed.
  void validate() const;
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
  };

  std::string name;
  int world_size = 0;
  int hidden_size = 0;
  DataType dtype = DataType::kBf16;
  std::int64_t max_tokens = 0;
  std::vector<std::string> arch;  ///< may be empty: the device at hand
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
