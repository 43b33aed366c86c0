#include "commfuse/planner.hpp"

#include <algorithm>
#include <charconv>

namespace commfuse {
namespace {

constexpr int kVectorBytes = 16;
constexpr int kWarp = 32;

/// Threads that one SM is promised to hold (up to 128 registers each), whatever the block size.
constexpr int kThreadsPerSm = 512;

/// A block this small leaves few loads to wait for in each polling loop; measured: docs/performance.md.
constexpr int kFewTokensThreads = 128;
constexpr int kManyTokensThreads = 512;
constexpr int kMaxCluster = 8;

constexpr int round_up(int value, int unit) noexcept { return (value + unit - 1) / unit * unit; }

int vectors_per_row(const KernelSpec& spec) noexcept { return spec.hidden_size * size_of(spec.dtype) / kVectorBytes; }

bool needs_whole_row(Pattern pattern) noexcept { return pattern != Pattern::kAllReduce; }

/// Clusters exist from sm_90 on.
bool has_clusters(std::string_view arch) noexcept {
  int number = 0;
  if (arch.starts_with("sm_")) std::from_chars(arch.data() + 3, arch.data() + arch.size(), number);
  return number >= 90;
}

/// Blocks of `spec` that one rank may have resident while every other rank on the device has as many.
std::int64_t resident_blocks(const KernelSpec& spec, const PlanRequest& request, const DeviceCaps& caps) noexcept {
  const std::int64_t on_device = std::int64_t{caps.sm_count} * resident_blocks_per_sm(spec.threads);
  const std::int64_t per_rank = on_device / std::max(caps.ranks_on_device, 1);
  // On a device of its own a rank's blocks are all resident before a dependent kernel's first one can start. Where
  // ranks share the device, the dependent blocks of one rank could take the place of blocks that another still has to
  // start.
  return request.dependent_launch && caps.ranks_on_device > 1 ? per_rank / 2 : per_rank;
}

}  // namespace

std::vector<Geometry> geometries(const KernelSpec& shape) {
  const int vectors = vectors_per_row(shape);
  if (!needs_whole_row(shape.pattern)) return {{std::min(kFewTokensThreads, round_up(vectors, kWarp)), 1}};
  const Geometry many{std::min(kManyTokensThreads, round_up(vectors, kWarp)), 1};
  if (!has_clusters(shape.arch)) return {many};
  Geometry few{0, 1};
  while (few.cluster < kMaxCluster && (vectors + few.cluster - 1) / few.cluster > kFewTokensThreads) few.cluster *= 2;
  few.threads = std::min(kManyTokensThreads, round_up((vectors + few.cluster - 1) / few.cluster, kWarp));
  if (few == many) return {few};
  return {few, many};
}

int resident_blocks_per_sm(int threads) noexcept { return std::max(1, kThreadsPerSm / std::max(threads, 1)); }

Plan plan(const PlanRequest& request, const DeviceCaps& caps) noexcept {
  Plan result;
  if (request.tokens <= 0) {
    result.reason = "no tokens: nothing to exchange on any rank";
    return result;
  }
  // The geometries come with the one for few tokens first; it is right as long as all tokens fit at once.
  const int last = static_cast<int>(request.kernels.size()) - 1;
  const auto limit = [&](const KernelSpec& spec) {
    const std::int64_t resident = resident_blocks(spec, request, caps);
    return request.max_blocks > 0 ? std::min<std::int64_t>(resident, request.max_blocks) : resident;
  };
  while (result.kernel < last &&
         request.tokens * request.kernels[result.kernel].cluster > limit(request.kernels[result.kernel])) {
    ++result.kernel;
  }
  const KernelSpec& spec = request.kernels[result.kernel];
  const std::int64_t cluster = spec.cluster;
  const std::int64_t resident = resident_blocks(spec, request, caps);
  const bool whole_row = needs_whole_row(spec.pattern);
  std::int64_t blocks =
      whole_row ? request.tokens * cluster : (request.tokens * vectors_per_row(spec) + spec.threads - 1) / spec.threads;
  result.reason = !whole_row ? "one vector per thread" : cluster > 1 ? "one cluster per token" : "one block per token";
  if (blocks > resident) {
    blocks = resident;
    result.reason = "as many blocks as can be resident together on all ranks of the device";
  }
  if (request.max_blocks > 0 && blocks > request.max_blocks) {
    blocks = request.max_blocks;
    result.reason = "capped by the caller";
  }
  blocks = blocks / cluster * cluster;
  if (blocks < cluster) {
    blocks = cluster;
    result.reason = "the smallest possible launch: one cluster";
  }
  result.blocks = static_cast<unsigned>(blocks);
  return result;
}

}  // namespace commfuse
