// The operations that an engine launches.
#pragma once

#include <cstdint>
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
}

/// Which all-reduce: everything that a call cannot change.
struct AllReduceKind {
  Pattern pattern = Pattern::kAllReduce;
  DataType dtype = DataType::kBf16;
  int hidden_size = 0;
  bool fp32_accumulate = true;
};

/// Device pointers of one call on one rank, 16-byte aligned, dense row-major matrices [tokens, hidden_size] of the
/// operation's type unless said otherwise. Outputs may be the very same matrix as an input (in place); they may not
/// overlap in any other way. Not owned; they must stay valid until the call has completed on the stream.
struct AllReduceTensors {
  const void* in = nullptr;           ///< this rank's partial sums
  const void* residual_in = nullptr;  ///< residual_rms_norm
  const void* gamma = nullptr;        ///< residual_rms_norm: [hidden_size] of the operation's type
  void* out = nullptr;                ///< all_reduce: the sum
  void* residual_out = nullptr;       ///< residual_rms_norm: sum + residual
  void* norm_out = nullptr;           ///< residual_rms_norm
};

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
};

/// A prepared all-reduce on one rank. Cheap to launch: no allocation, lock, string or hash. Holds references to the
/// kernel set and the workspace, which must outlive it. One thread at a time.
class AllReduce {
 public:
  /// Throws Error(kNotWarmed) naming the kernel if `kernels` does not hold it, Error(kInvalidArgument) for a kind that
  /// no kernel can have.
  AllReduce(const KernelSet& kernels, Workspace& workspace, const AllReduceKind& kind);

  /// Puts the call on the stream and returns; every rank of the group must make the same call. kInvalidArgument names
  /// the tensor; kCapacity means more tokens than the workspace holds; kTimeout, kAborted or kMismatch mean that an
  /// earlier call failed (Workspace::failure() says how) and nothing was launched. With 0 tokens nothing is launched,
  /// on any rank. Safe inside a stream capture.
  Status launch(const AllReduceTensors& tensors, std::int64_t tokens, const LaunchOptions& options,
                Stream stream) noexcept;

  /// What launch would do.
  [[nodiscard]] Plan plan(std::int64_t tokens, const LaunchOptions& options = {}) const noexcept;
  /// The kernels that a plan chooses from (Plan::kernel is an index into them).
  [[nodiscard]] const std::vector<KernelSpec>& kernels() const noexcept { return specs_; }

 private:
  AllReduceKind kind_;
  std::vector<KernelSpec> specs_;
  std::vector<const KernelImage*> images_;
  runtime::WorkspaceState* workspace_;
};

}  // namespace commfuse
