// What is measured: the operations of a deployment, and their data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "commfuse/spec.hpp"
#include "reference/case.hpp"

namespace commfuse::cli {

/// One operation: kernels that are equal but for algorithm and geometry.
struct BenchShape {
  KernelSpec spec;  ///< what they have in common; algorithm, threads and cluster mean nothing
  std::vector<KernelSpec> kernels;

  /// "all_reduce_residual_rms_norm_bf16_n8_h8192_fp32acc"
  [[nodiscard]] std::string title() const;
  [[nodiscard]] bool has(Algorithm algorithm) const;
  /// Of one rank, for the algorithm that needs more of those in `algorithms`.
  [[nodiscard]] std::uint64_t rotation_bytes(std::int64_t tokens, const std::vector<Algorithm>& algorithms) const;
};

/// The operations that `kernels` are for, in the order in which they first appear.
[[nodiscard]] std::vector<BenchShape> shapes_of(const std::vector<KernelSpec>& kernels);

/// Device memory that measuring takes, all ranks together: an estimate from above.
[[nodiscard]] std::uint64_t device_bytes_needed(const KernelSpec& spec, std::int64_t tokens, std::uint64_t rotation);

/// A case of more tokens whose inputs repeat those of `small`, without expected outputs (only their sizes are right):
/// for timing calls that would take the reference too long. `small` has at least one token for every rank.
[[nodiscard]] reference::Case enlarge_case(const reference::Case& small, std::int64_t tokens);

}  // namespace commfuse::cli
