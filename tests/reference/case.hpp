// A whole call as test data: what every rank passes in and what every rank must find afterwards. Simulator tests, GPU
// tests and the command's self-test all run these.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "commfuse/spec.hpp"
#include "reference/compare.hpp"
#include "reference/data.hpp"

namespace commfuse::reference {

enum class TensorId {
  kIn,
  kAddIn,
  kResidualIn,
  kGamma,
  kGammaBefore,
  kScaleFactor,
  kMixtureMax,
  kMixtureSum,
  kMixture,
  kScoreWeight,
  kMixtureGamma,
  kOut,
  kResidualOut,
  kNormOut,
  kPartialNormOut,
  kQuantOut,
  kScaleOut,
};
inline constexpr int kTensorCount = 17;
[[nodiscard]] std::string_view to_string(TensorId id);
[[nodiscard]] constexpr bool is_output(TensorId id) { return id >= TensorId::kOut; }

/// Every byte of an output before the call.
inline constexpr std::uint8_t kPoison = 0xa5;

/// One rank's tensor: the bytes passed in, or those expected.
struct CaseTensor {
  bool used = false;
  Bytes bytes;
  Format format = Format::kByte;
  std::size_t columns = 1;  ///< for reports
};

struct Case {
  KernelSpec spec;
  std::int64_t tokens = 0;
  float eps = 1e-6f;
  std::vector<Rows> rows;                   ///< of each rank's own: of its outputs, where the operation scatters them
  std::vector<std::int64_t> scale_strides;  ///< of each rank
  std::vector<std::array<CaseTensor, kTensorCount>> ranks;

  [[nodiscard]] const CaseTensor& tensor(int rank, TensorId id) const {
    return ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)];
  }
};

/// Equal arguments give equal cases. Half of the seeds give norm_out where it is optional (reduce-scatter).
[[nodiscard]] Case make_case(const KernelSpec& spec, std::int64_t tokens, Values values, std::uint64_t seed,
                             bool zero_padding = false);
/// The same with the rows that each rank owns.
[[nodiscard]] Case make_case(const KernelSpec& spec, const std::vector<std::int64_t>& rows_of_ranks, Values values,
                             std::uint64_t seed, bool zero_padding = false);
/// The rows of a balanced partition.
[[nodiscard]] std::vector<std::int64_t> balanced_rows(std::int64_t tokens, int world_size);

/// Empty if `actual` is what rank `rank` must find in output `id`; else a report. Bits are compared; any NaN equals any
/// other (their payloads are not part of the contract).
[[nodiscard]] std::string check_output(const Case& test, int rank, TensorId id, const Bytes& actual);

}  // namespace commfuse::reference
