#include "commfuse/planner.hpp"

#include <algorithm>
#include <charconv>

#include "runtime/pattern.hpp"
#include "runtime/tuning.hpp"

namespace commfuse {
namespace {

constexpr int kVectorBytes = 16;
constexpr int kWarp = 32;

/// Threads that one SM is promised to hold (up to 128 registers each), whatever the block size.
constexpr int kThreadsPerSm = 512;

/// A block this small leaves few loads to wait for in each polling loop; measured: docs/performance.md.
constexpr int kFewTokensThreads = 128;
/// With many tokens a thread takes two vectors of a row: blocks stay small, so several share an SM and hide each
/// other's barriers.
constexpr int kManyTokensVectors = 2;
constexpr int kMinManyTokensThreads = 128;
constexpr int kMaxManyTokensThreads = 512;
constexpr int kMaxCluster = 8;

constexpr int round_up(int value, int unit) noexcept { return (value + unit - 1) / unit * unit; }

int vectors_per_row(const KernelSpec& spec) noexcept { return spec.hidden_size * size_of(spec.dtype) / kVectorBytes; }

/// One-shot without a norm works on single vectors; everything else on whole rows.
bool works_on_rows(const KernelSpec& spec) noexcept {
  return runtime::needs_whole_row(spec.pattern) || spec.algorithm != Algorithm::kOneShot;
}

/// Clusters exist from sm_90 on.
bool has_clusters(std::string_view arch) noexcept {
  int number = 0;
  if (arch.starts_with("sm_")) std::from_chars(arch.data() + 3, arch.data() + arch.size(), number);
  return number >= 90;
}

/// Blocks of `spec` that one rank may launch so that all of them are resident together with those of every other rank
/// on the device.
std::int64_t resident_blocks(const KernelSpec& spec, const PlanRequest& request, const DeviceCaps& caps) noexcept {
  const std::int64_t ranks = std::max(caps.ranks_on_device, 1);
  const std::int64_t blocks = std::int64_t{caps.sm_count} * resident_blocks_per_sm(spec.threads) / ranks;
  // On a device of its own a rank's blocks are all resident before a dependent kernel's first one can start. Where
  // ranks share the device, blocks of one rank's next kernel may be resident before another rank's current kernel has
  // started, and small ones spread over all SMs would leave no room for large ones. Counting one SM for every block of
  // both kernels, there is room for any mixture.
  if (request.dependent_launch && ranks > 1) return std::min(blocks, caps.sm_count / (2 * ranks));
  return blocks;
}

/// Blocks or clusters that would each have one piece of work.
std::int64_t teams_wanted(const KernelSpec& spec, std::int64_t tokens) noexcept {
  // The tokens of one rank only.
  if (spec.op != Op::kAllReduce || spec.algorithm != Algorithm::kOneShot) {
    tokens = (tokens + spec.world_size - 1) / spec.world_size;
  }
  if (works_on_rows(spec)) return tokens;
  return (tokens * vectors_per_row(spec) + spec.threads - 1) / spec.threads;
}

/// By each rank, if it sends all of its input to every other rank.
std::int64_t bytes_sent(const KernelSpec& shape, std::int64_t tokens) noexcept {
  return tokens * shape.hidden_size * size_of(shape.dtype) * (shape.world_size - 1);
}

/// Ranks that share a device share its memory bandwidth: what counts is how much each rank sends. Measured on an H200
/// with 2, 4 and 8 ranks (docs/performance.md).
bool prefers_one_shot_on_one_device(const KernelSpec& shape, std::int64_t tokens) noexcept {
  return bytes_sent(shape, tokens) <= (shape.world_size <= 2 ? std::int64_t{2} << 20 : std::int64_t{512} << 10);
}

/// Two signals with every peer cost as much as staging a few MiB does (measured: docs/performance.md).
bool prefers_direct(const KernelSpec& shape, std::int64_t tokens) noexcept {
  return bytes_sent(shape, tokens) >= std::int64_t{4} << 20;
}

Algorithm choose_algorithm(const PlanRequest& request, const DeviceCaps& caps) noexcept {
  const auto has = [&](Algorithm algorithm) {
    return std::any_of(request.kernels.begin(), request.kernels.end(),
                       [&](const KernelSpec& spec) { return spec.algorithm == algorithm; });
  };
  if (request.algorithm && has(*request.algorithm)) return *request.algorithm;
  const bool has_two_shot = has(Algorithm::kTwoShot);
  const bool has_direct = has(Algorithm::kDirect);
  if (has(Algorithm::kOneShot)) {
    const KernelSpec& shape = request.kernels.front();
    const bool few = caps.ranks_on_device > 1 ? prefers_one_shot_on_one_device(shape, request.tokens)
                                              : prefers_one_shot(shape, request.tokens);
    if (few || (!has_two_shot && !has_direct)) return Algorithm::kOneShot;
  }
  const bool direct = request.registered && prefers_direct(request.kernels.front(), request.tokens);
  return has_direct && (direct || !has_two_shot) ? Algorithm::kDirect : Algorithm::kTwoShot;
}

std::string_view reason_of(const KernelSpec& spec) noexcept {
  if (spec.op != Op::kAllReduce) {
    if (!works_on_rows(spec)) return "one vector of this rank's tokens per thread";
    return spec.cluster > 1 ? "one cluster per token of this rank" : "one block per token of this rank";
  }
  switch (spec.algorithm) {
    case Algorithm::kOneShot:
      if (!works_on_rows(spec)) return "one-shot: one vector per thread";
      return spec.cluster > 1 ? "one-shot: one cluster per token" : "one-shot: one block per token";
    case Algorithm::kTwoShot:
      return "two-shot: every team owns one of this rank's tokens";
    case Algorithm::kDirect:
      return "direct: every team owns one of this rank's tokens and reaches into registered tensors";
  }
  return {};
}

std::string_view reason_of_limit(const KernelSpec& spec) noexcept {
  if (spec.op != Op::kAllReduce) return "as many blocks as can be resident together on all ranks of the device";
  switch (spec.algorithm) {
    case Algorithm::kOneShot:
      return "one-shot: as many blocks as can be resident together on all ranks of the device";
    case Algorithm::kTwoShot:
      return "two-shot: as many blocks as can be resident together on all ranks of the device";
    case Algorithm::kDirect:
      return "direct: as many blocks as can be resident together on all ranks of the device";
  }
  return {};
}

/// The grid of the chosen kernel, at most `cap` blocks (0: no cap); `reason` is given and stays unless a limit decides.
void choose_blocks(const PlanRequest& request, const DeviceCaps& caps, std::int64_t cap, Plan& result) noexcept {
  const KernelSpec& spec = request.kernels[result.kernel];
  const std::int64_t cluster = spec.cluster;
  const std::int64_t resident = resident_blocks(spec, request, caps);
  std::int64_t blocks = teams_wanted(spec, request.tokens) * cluster;
  if (blocks > resident) {
    blocks = resident;
    result.reason = reason_of_limit(spec);
  }
  if (cap > 0 && blocks > cap) {
    blocks = cap;
    result.reason = "capped by the caller";
  }
  blocks = blocks / cluster * cluster;
  if (blocks < cluster) {
    blocks = cluster;
    result.reason = "the smallest possible launch: one cluster";
  }
  result.blocks = static_cast<unsigned>(blocks);
}

/// What was measured for such a call, if `kernels` has it and the caller wants nothing else.
bool plan_as_measured(const PlanRequest& request, const DeviceCaps& caps, Plan& result) noexcept {
  if (request.measured == nullptr) return false;
  const runtime::TuningChoice& choice = request.measured->at(request.tokens);
  if (request.algorithm && *request.algorithm != choice.algorithm) return false;
  if (choice.algorithm == Algorithm::kDirect && !request.registered) return false;
  // Other choices were measured with ordinary tensors: they do not speak against reaching registered ones.
  if (choice.algorithm != Algorithm::kDirect && choose_algorithm(request, caps) == Algorithm::kDirect) return false;
  const auto is_chosen = [&](const KernelSpec& spec) {
    return spec.algorithm == choice.algorithm && Geometry{spec.threads, spec.cluster} == choice.geometry;
  };
  const auto found = std::find_if(request.kernels.begin(), request.kernels.end(), is_chosen);
  if (found == request.kernels.end()) return false;
  result.kernel = static_cast<int>(found - request.kernels.begin());
  result.reason = "measured: the fastest for so many tokens in the planner's table";
  choose_blocks(request, caps, request.max_blocks, result);
  if (choice.blocks > 0 && result.blocks > static_cast<unsigned>(choice.blocks)) {
    result.blocks = static_cast<unsigned>(std::max(choice.blocks / found->cluster * found->cluster, found->cluster));
  }
  return true;
}

}  // namespace

bool prefers_one_shot(const KernelSpec& shape, std::int64_t tokens) noexcept {
  // MiB that all ranks may send together, by world size (that size or fewer ranks).
  struct Limit {
    int world_size;
    std::int64_t mebibytes;
  };
  constexpr Limit kLimits[] = {{2, 512}, {4, 64}, {8, 42}, {16, 21}};
  const std::int64_t bytes = tokens * shape.hidden_size * size_of(shape.dtype) * 2 * shape.world_size;
  for (const Limit& limit : kLimits) {
    if (shape.world_size <= limit.world_size) return bytes <= limit.mebibytes << 20;
  }
  return false;
}

std::vector<Geometry> geometries(const KernelSpec& shape) {
  const int vectors = vectors_per_row(shape);
  if (!works_on_rows(shape)) return {{std::min(kFewTokensThreads, round_up(vectors, kWarp)), 1}};
  const int share = round_up((vectors + kManyTokensVectors - 1) / kManyTokensVectors, kWarp);
  const int most = std::min(round_up(vectors, kWarp), kMaxManyTokensThreads);
  const Geometry many{std::clamp(share, std::min(kMinManyTokensThreads, most), most), 1};
  // Two signals per call make direct kernels unfit for few tokens.
  if (shape.algorithm == Algorithm::kDirect) return {many};
  if (!has_clusters(shape.arch)) return {many};
  Geometry few{0, 1};
  while (few.cluster < kMaxCluster && (vectors + few.cluster - 1) / few.cluster > kFewTokensThreads) few.cluster *= 2;
  few.threads = std::min(kMaxManyTokensThreads, round_up((vectors + few.cluster - 1) / few.cluster, kWarp));
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
  if (plan_as_measured(request, caps, result)) return result;
  const Algorithm algorithm = choose_algorithm(request, caps);
  const auto suits = [&](int kernel) { return request.kernels[kernel].algorithm == algorithm; };
  // An algorithm's geometries come with the one for few tokens first. It is the faster one as long as all tokens fit at
  // once and leave half of the device idle (measured: docs/performance.md).
  const int count = static_cast<int>(request.kernels.size());
  result.kernel = -1;
  for (int kernel = 0; kernel < count; ++kernel) {
    if (!suits(kernel)) continue;
    result.kernel = kernel;
    const KernelSpec& candidate = request.kernels[kernel];
    const std::int64_t wanted = teams_wanted(candidate, request.tokens) * candidate.cluster;
    std::int64_t limit = resident_blocks(candidate, request, caps);
    if (request.max_blocks > 0) limit = std::min<std::int64_t>(limit, request.max_blocks);
    const std::int64_t half = std::int64_t{caps.sm_count} * resident_blocks_per_sm(candidate.threads) /
                              (2 * std::int64_t{std::max(caps.ranks_on_device, 1)});
    if (wanted <= std::min(limit, half)) break;
  }
  result.reason = reason_of(request.kernels[result.kernel]);
  choose_blocks(request, caps, request.max_blocks, result);
  return result;
}

}  // namespace commfuse
