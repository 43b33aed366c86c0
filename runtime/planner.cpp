#include "commfuse/planner.hpp"

#include <algorithm>

namespace commfuse {
namespace {

constexpr int kVectorBytes = 16;
constexpr int kWarp = 32;

/// Threads that one SM is promised to hold (up to 128 registers each), whatever the block size.
constexpr int kThreadsPerSm = 512;

int vectors_per_row(DataType dtype, int hidden_size) noexcept { return hidden_size * size_of(dtype) / kVectorBytes; }

int round_up_to_warp(int threads) noexcept { return (threads + kWarp - 1) / kWarp * kWarp; }

}  // namespace

Geometry default_geometry(Pattern pattern, DataType dtype, int hidden_size) noexcept {
  const int vectors = vectors_per_row(dtype, hidden_size);
  // Without a norm no thread needs another's data: small blocks, each waiting for few loads.
  if (pattern == Pattern::kAllReduce) return {std::min(128, round_up_to_warp(vectors)), 1};
  // With a norm, one block holds a whole row, so the row's sum needs one block barrier and no cluster.
  return {std::min(512, round_up_to_warp(vectors)), 1};
}

int resident_blocks_per_sm(int threads) noexcept { return std::max(1, kThreadsPerSm / std::max(threads, 1)); }

Plan plan(const PlanRequest& request, const DeviceCaps& caps) noexcept {
  const KernelSpec& spec = *request.spec;
  Plan result;
  result.algorithm = spec.algorithm;
  result.threads = static_cast<unsigned>(spec.threads);
  result.cluster = static_cast<unsigned>(spec.cluster);
  if (request.tokens <= 0) {
    result.reason = "no tokens: nothing to exchange on any rank";
    return result;
  }
  const std::int64_t cluster = spec.cluster;
  // Blocks that a rank may have resident while every other rank on the device has as many; a dependent launch may hold a
  // second set beside the first.
  const std::int64_t resident = std::int64_t{caps.sm_count} * resident_blocks_per_sm(spec.threads) /
                                (std::int64_t{std::max(caps.ranks_on_device, 1)} * (request.dependent_launch ? 2 : 1));
  const bool whole_row = spec.pattern != Pattern::kAllReduce;
  const std::int64_t vectors = vectors_per_row(spec.dtype, spec.hidden_size);
  const std::int64_t wanted =
      whole_row ? request.tokens * cluster : (request.tokens * vectors + spec.threads - 1) / spec.threads;
  std::int64_t blocks = wanted;
  result.reason = whole_row ? "one block or cluster per token" : "one vector per thread";
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
