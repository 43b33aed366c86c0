// The operations that an engine launches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "commfuse/engine.hpp"
#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"
#include "commfuse/workspace.hpp"

// The driver's stream handle, declared here so that cuda.h is not needed.
struct CUstream_st;

namespace commfuse {

using Stream = CUstream_st*;

namespace runtime {
class WorkspaceState;
struct RowPartition;
}  // namespace runtime

/// Which all-reduce: everything that a call cannot change. Fields as in KernelSpec; those that the pattern does not
/// look at are ignored.
struct AllReduceKind {
  Pattern pattern = Pattern::kAllReduce;
  DataType dtype = DataType::kBf16;
  int hidden_size = 0;
  bool fp32_accumulate = true;
  std::optional<DataType> gamma_dtype = std::nullopt;  ///< default: dtype
  bool weight_bias = false;
  bool residual_scattered = false;
  QuantLayout quant_layout = QuantLayout::kSwizzled128x4;
  int group_size = 128;
  int latent_width = 0;
};

/// Device pointers of one call on one rank, 16-byte aligned, dense row-major matrices [tokens, hidden_size] of the
/// operation's type unless said otherwise. Which ones a pattern needs is said at commfuse::Pattern; the others are not
/// looked at. An output may be the very same matrix as an input (in place); tensors may not overlap in any other way.
/// Not owned; they must stay valid until the call has completed on the stream.
///
/// in, out, residual_out (unless scattered), norm_out, quant_out and scale_out may lie in registered buffers
/// (Workspace::allocate and register_buffer of the groups), each by itself; where the deployment has `direct` kernels,
/// large calls then read and write them where they lie. Which of a call's tensors are registered, and where they lie
/// in their buffers, must be the same on all ranks.
struct AllReduceTensors {
  const void* in = nullptr;            ///< this rank's partial sums
  const void* residual_in = nullptr;   ///< with a scattered residual: own rows only, densely
  const void* gamma = nullptr;         ///< [hidden_size] ([latent_width] for latent_norm) of gamma_dtype
  const void* gamma_before = nullptr;  ///< residual_rms_pre_post_norm: [hidden_size] of gamma_dtype
  const float* scale_factor =
      nullptr;  ///< one number on the device. FP8 (one given scale): x is about q * scale_factor;
                ///< FP4: the global scale, usually 448 * 6 / the largest magnitude
  const float* mixture_max = nullptr;   ///< attn_res_combine: [tokens]
  const float* mixture_sum = nullptr;   ///< attn_res_combine: [tokens]
  const float* mixture = nullptr;       ///< attn_res_combine: [tokens, hidden_size] fp32
  const void* score_weight = nullptr;   ///< attn_res_combine: [hidden_size]
  const void* mixture_gamma = nullptr;  ///< attn_res_combine: [hidden_size], or null: the mixture is not normalised
  void* out = nullptr;                  ///< all_reduce, latent_norm
  void* residual_out = nullptr;         ///< rows as residual_in
  void* norm_out = nullptr;
  void* partial_norm_out = nullptr;  ///< own rows only, densely
  void* quant_out = nullptr;         ///< E4M3: one byte per element. FP4: half a byte, even column in the low nibble
  void* scale_out = nullptr;         ///< FP4: bytes in quant_layout, padding included; FP8 block: fp32, column-major;
                                     ///< FP8 token: fp32 [tokens]; FP8 group: UE8M0, four to a word, words column-major
  /// Column-major scales: elements from one column to the next; a multiple of 4, at least tokens. 0: tokens rounded up.
  std::int64_t scale_stride = 0;
};

/// Bytes that scale_out must have for such a call (0 where the pattern has none).
[[nodiscard]] std::uint64_t scale_bytes(const AllReduceKind& kind, std::int64_t tokens,
                                        std::int64_t scale_stride = 0) noexcept;

struct LaunchOptions {
  float eps = 1e-6f;
  /// Programmatic dependent launch: this kernel may start while the one before it on the stream still runs (it waits
  /// for that kernel's completion before it reads anything). Every kernel between two calls of one workspace must
  /// itself wait or be serialised; a kernel that does neither would let the second call overtake the first.
  bool dependent_launch = false;
  /// Lets the kernel after this one start early. false: when this one has ended.
  bool trigger_early = false;
  /// Most blocks to launch, to leave SMs to others; 0 = no cap. Must be the same on all ranks.
  int max_blocks = 0;
  /// Instead of the planner's choice; must be the same on all ranks.
  std::optional<Algorithm> algorithm = std::nullopt;
  /// FP4 and FP8 group: also write 0 to the scales of rows and blocks that do not exist.
  bool zero_scale_padding = false;
};

/// What every prepared operation of one rank has. Cheap to launch: no allocation, lock, string or hash. Holds
/// references to the kernel set and the workspace, which must outlive it. One thread at a time.
class FusedOperation {
 public:
  /// What a launch with so many tokens would do. (Where ranks have uneven numbers of rows: world_size times the largest
  /// number.) `registered`: with tensors of which some lie in registered buffers.
  [[nodiscard]] Plan plan(std::int64_t tokens, const LaunchOptions& options = {},
                          bool registered = false) const noexcept;
  /// The kernels that a plan chooses from (Plan::kernel is an index into them).
  [[nodiscard]] const std::vector<KernelSpec>& kernels() const noexcept { return specs_; }

 protected:
  /// Looks up the kernels of `shape`, whose algorithm and geometry are not looked at.
  FusedOperation(const KernelSet& kernels, Workspace& workspace, KernelSpec shape);

  /// The checks that do not depend on the operation.
  Status check_call(std::int64_t tokens, const LaunchOptions& options) const noexcept;
  /// In checking mode the other ranks are told of each call, right before start(); a call without tokens is not started
  /// but announced. `rows_of_ranks` stands for the runs of rows where they are not balanced.
  [[nodiscard]] bool is_announced() const noexcept { return check_ != nullptr; }
  Status announce(const KernelSpec& spec, std::int64_t tokens, std::uint32_t rows_of_ranks,
                  const LaunchOptions& options, Stream stream) const noexcept;
  /// Puts the planned kernel on the stream with the parameter block at `params`.
  Status start(const Plan& chosen, void* params, const LaunchOptions& options, Stream stream) const noexcept;

  std::vector<KernelSpec> specs_;
  std::vector<const KernelImage*> images_;
  runtime::WorkspaceState* workspace_;

 private:
  const runtime::TuningEntry* measured_ = nullptr;  ///< of the workspace's planner table
  const KernelImage* check_ = nullptr;  ///< announces calls; null where the workspace is not in checking mode
};

/// A prepared all-reduce.
class AllReduce : public FusedOperation {
 public:
  /// If `kernels` holds none that can do it, they are built here, or Error(kNotWarmed) names one: as KernelSet::seal
  /// was told. Throws Error(kInvalidArgument) for a kind that no kernel can have.
  AllReduce(const KernelSet& kernels, Workspace& workspace, const AllReduceKind& kind);

  /// Puts the call on the stream and returns; every rank of the group must make the same call. kInvalidArgument names
  /// the tensor; kCapacity means more tokens than the workspace holds; kTimeout, kAborted or kMismatch mean that an
  /// earlier call failed (Workspace::failure() says how) and nothing was launched. With 0 tokens nothing is launched,
  /// on any rank (but announced, in checking mode). Safe inside a stream capture.
  Status launch(const AllReduceTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                Stream stream) noexcept;

 private:
  AllReduceKind kind_;
  bool has_direct_ = false;
};

/// Which reduce-scatter. Fields as in AllReduceKind.
struct ReduceScatterKind {
  Pattern pattern = Pattern::kReduceScatter;
  DataType dtype = DataType::kBf16;
  int hidden_size = 0;
  bool fp32_accumulate = true;
  std::optional<DataType> gamma_dtype = std::nullopt;  ///< default: dtype
  bool weight_bias = false;
  QuantLayout quant_layout = QuantLayout::kSwizzled128x4;
  int group_size = 128;
};

/// As AllReduceTensors, but all matrices except `in` have this rank's own rows only. A rank without rows may leave them
/// out.
struct ReduceScatterTensors {
  const void* in = nullptr;            ///< this rank's partial sums of all rows
  const void* add_in = nullptr;        ///< patterns with add
  const void* residual_in = nullptr;   ///< patterns with residual
  const void* gamma = nullptr;         ///< [hidden_size] of gamma_dtype
  const void* gamma_before = nullptr;  ///< residual_rms_pre_post_norm: [hidden_size] of gamma_dtype
  const float* scale_factor = nullptr;
  void* out = nullptr;  ///< reduce_scatter
  void* residual_out = nullptr;
  void* norm_out = nullptr;  ///< may be null where the pattern's name does not promise it
  void* quant_out = nullptr;
  void* scale_out = nullptr;
  std::int64_t scale_stride = 0;  ///< 0: this rank's rows rounded up to a multiple of 4
};

/// Bytes that scale_out must have on a rank with so many own rows (0 where the pattern has none).
[[nodiscard]] std::uint64_t scale_bytes(const ReduceScatterKind& kind, std::int64_t own_rows,
                                        std::int64_t scale_stride = 0) noexcept;

/// A prepared reduce-scatter: rows of consecutive tokens go to the ranks in ascending order. LaunchOptions::algorithm
/// makes no difference: there is one way to exchange.
class ReduceScatter : public FusedOperation {
 public:
  /// Throws as AllReduce.
  ReduceScatter(const KernelSet& kernels, Workspace& workspace, const ReduceScatterKind& kind);

  /// As AllReduce::launch. Each rank gets `tokens` / world size rows, the first ranks one more where there is a rest.
  Status launch(const ReduceScatterTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                Stream stream) noexcept;
  /// With the rows that each rank gets, the same numbers on all ranks; zeros are allowed. If all are zero, nothing is
  /// launched.
  Status launch(const ReduceScatterTensors& tensors, std::span<const std::int64_t> rows_of_ranks,
                const LaunchOptions& options, Stream stream) noexcept;

 private:
  Status launch_runs(const ReduceScatterTensors& tensors, const runtime::RowPartition& partition,
                     const LaunchOptions& options, Stream stream) noexcept;
};

/// Which all-gather. Any type can be gathered: bits are not looked at, so rows of R bytes are rows of R / 2 bf16.
struct AllGatherKind {
  Pattern pattern = Pattern::kAllGather;
  DataType dtype = DataType::kBf16;
  int hidden_size = 0;
  std::optional<DataType> gamma_dtype = std::nullopt;  ///< default: dtype
  bool weight_bias = false;
  int q_lora_rank = 0;   ///< dual norms: columns of the first
  int kv_lora_rank = 0;  ///< and of the second, after them
};

/// As AllReduceTensors; `in` has this rank's own rows, the others have all rows, those of rank 0 first. `in` may be the
/// place in `out` where its rows go.
struct AllGatherTensors {
  const void* in = nullptr;
  const void* x_gamma = nullptr;  ///< dual norms: [q_lora_rank] of gamma_dtype
  const void* y_gamma = nullptr;  ///< dual norms: [kv_lora_rank]
  void* out = nullptr;
  void* x_norm_out = nullptr;  ///< dual norms: [tokens, q_lora_rank]
  void* y_norm_out = nullptr;  ///< dual norms: rows of kv_lora_rank columns; may be those columns of `out` themselves
  std::int64_t y_norm_stride = 0;  ///< elements from one row of it to the next, whole vectors; 0: kv_lora_rank
  void* quant_out = nullptr;       ///< with fp8_block: [tokens, q_lora_rank]
  void* scale_out = nullptr;
  std::int64_t scale_stride = 0;
  float y_eps = 1e-6f;  ///< of the second norm; the first one's is LaunchOptions::eps
};

/// Bytes that scale_out must have (0 where the pattern has none).
[[nodiscard]] std::uint64_t scale_bytes(const AllGatherKind& kind, std::int64_t tokens,
                                        std::int64_t scale_stride = 0) noexcept;

/// A prepared all-gather. LaunchOptions::algorithm makes no difference: there is one way to exchange.
class AllGather : public FusedOperation {
 public:
  /// Throws as AllReduce.
  AllGather(const KernelSet& kernels, Workspace& workspace, const AllGatherKind& kind);

  /// As ReduceScatter::launch: `tokens` are the rows of all ranks together.
  Status launch(const AllGatherTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                Stream stream) noexcept;
  Status launch(const AllGatherTensors& tensors, std::span<const std::int64_t> rows_of_ranks,
                const LaunchOptions& options, Stream stream) noexcept;

 private:
  Status launch_runs(const AllGatherTensors& tensors, const runtime::RowPartition& partition,
                     const LaunchOptions& options, Stream stream) noexcept;
};

}  // namespace commfuse
