#include "cli/bench_shape.hpp"

#include <algorithm>

#include "commfuse/operations.hpp"
#include "commfuse/workspace.hpp"
#include "gpu/loopback.hpp"

namespace commfuse::cli {
namespace {

using reference::TensorId;

KernelSpec without_choice(KernelSpec spec) {
  const KernelSpec defaults;
  spec.algorithm = defaults.algorithm;
  spec.threads = defaults.threads;
  spec.cluster = defaults.cluster;
  return spec;
}

/// Rows of a tensor on one rank; 0 for those that do not grow with the tokens.
std::int64_t rows_of(const KernelSpec& spec, TensorId id, int rank, std::int64_t tokens) {
  const std::int64_t own = reference::rows_of_rank(tokens, spec.world_size, rank).count;
  const bool scatters = spec.op == Op::kReduceScatter;
  switch (id) {
    case TensorId::kIn:
      return tokens;
    case TensorId::kAddIn:
      return own;
    case TensorId::kMixtureMax:
    case TensorId::kMixtureSum:
    case TensorId::kMixture:
    case TensorId::kOut:
    case TensorId::kNormOut:
    case TensorId::kQuantOut:
      return scatters ? own : tokens;
    case TensorId::kResidualIn:
    case TensorId::kResidualOut:
      return spec.residual_scattered || scatters ? own : tokens;
    case TensorId::kPartialNormOut:
      return own;
    default:
      return 0;
  }
}

}  // namespace

std::string BenchShape::title() const {
  std::string title = spec.name();
  title.erase(title.rfind("_t"));
  const std::string algorithm = "_" + std::string(to_string(spec.algorithm));
  return title.erase(title.find(algorithm), algorithm.size());
}

bool BenchShape::has(Algorithm algorithm) const {
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const KernelSpec& kernel) { return kernel.algorithm == algorithm; });
}

std::uint64_t BenchShape::rotation_bytes(std::int64_t tokens, const std::vector<Algorithm>& algorithms) const {
  std::uint64_t bytes = 0;
  for (const KernelSpec& kernel : kernels) {
    if (std::find(algorithms.begin(), algorithms.end(), kernel.algorithm) == algorithms.end()) continue;
    bytes = std::max(bytes, required_rotation_bytes(kernel, tokens));
  }
  return bytes;
}

std::vector<BenchShape> shapes_of(const std::vector<KernelSpec>& kernels) {
  std::vector<BenchShape> shapes;
  for (const KernelSpec& kernel : kernels) {
    const KernelSpec common = without_choice(kernel);
    auto shape = std::find_if(shapes.begin(), shapes.end(), [&](const BenchShape& s) { return s.spec == common; });
    if (shape == shapes.end()) shape = shapes.insert(shapes.end(), {common, {}});
    shape->kernels.push_back(kernel);
  }
  return shapes;
}

std::uint64_t device_bytes_needed(const KernelSpec& spec, std::int64_t tokens, std::uint64_t rotation) {
  constexpr std::uint64_t kBuffers = 3;
  constexpr std::uint64_t kMatrices = 7;  // of the size of the input; six at most (a mixture counts twice), and weights
  const auto ranks = static_cast<std::uint64_t>(spec.world_size);
  const std::uint64_t matrix =
      static_cast<std::uint64_t>(tokens) * static_cast<std::uint64_t>(spec.hidden_size * size_of(spec.dtype));
  return ranks * (kBuffers * rotation + kMatrices * matrix);
}

reference::Case enlarge_case(const reference::Case& small, std::int64_t tokens) {
  reference::Case large = small;
  large.tokens = tokens;
  for (std::size_t rank = 0; rank < large.ranks.size(); ++rank) {
    large.rows[rank] = reference::rows_of_rank(tokens, small.spec.world_size, static_cast<int>(rank));
    const std::int64_t written = rows_of(small.spec, TensorId::kQuantOut, static_cast<int>(rank), tokens);
    large.scale_strides[rank] = (written + 3) / 4 * 4;
    for (std::size_t i = 0; i < large.ranks[rank].size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      reference::CaseTensor& tensor = large.ranks[rank][i];
      if (!tensor.used) continue;
      if (id == TensorId::kScaleOut) {
        tensor.bytes.assign(scale_bytes(gpu::kind_of(small.spec), written, large.scale_strides[rank]),
                            reference::kPoison);
        continue;
      }
      const std::int64_t rows = rows_of(small.spec, id, static_cast<int>(rank), small.tokens);
      if (rows == 0) continue;
      const std::size_t row_bytes = tensor.bytes.size() / static_cast<std::size_t>(rows);
      const reference::Bytes pattern = tensor.bytes;
      tensor.bytes.resize(row_bytes *
                          static_cast<std::size_t>(rows_of(small.spec, id, static_cast<int>(rank), tokens)));
      for (std::size_t at = 0; at < tensor.bytes.size(); at += pattern.size()) {
        const std::size_t count = std::min(pattern.size(), tensor.bytes.size() - at);
        std::copy_n(pattern.begin(), count, tensor.bytes.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
  }
  return large;
}

}  // namespace commfuse::cli
