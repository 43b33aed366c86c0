// What the ranks of a process group conclude from what they told each other. No driver here: equal inputs give equal
// conclusions, so all ranks go the same way.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"

namespace commfuse::runtime {

/// How a step ended on one rank.
struct Outcome {
  Code code = Code::kOk;
  std::string trouble;
  std::string remedy;
};
[[nodiscard]] bool all_ok(std::span<const Outcome> ranks) noexcept;
/// "rank 1: cuMemCreate failed ..." of the ranks that failed, the first of those with the same trouble standing for
/// all.
[[nodiscard]] std::string failures_text(std::span<const Outcome> ranks);

/// As one blob, with further bytes after it.
[[nodiscard]] Blob write_outcome(const Outcome& outcome, std::span<const std::byte> payload);
struct ReadOutcome {
  Outcome outcome;
  Blob payload;
};
/// A blob that does not follow the format is a failure of that rank.
[[nodiscard]] ReadOutcome read_outcome(std::span<const std::byte> blob);

using DeviceUuid = std::array<std::byte, 16>;
/// The device of one rank.
struct RankDevice {
  DeviceUuid uuid{};
  int sm_count = 0;
  bool has_fabric = false;  ///< its memory can be shared by fabric handle

  [[nodiscard]] Blob write() const;
  /// Throws Error(kInvalidInput).
  [[nodiscard]] static RankDevice read(std::span<const std::byte> blob);
};

/// The same for all ranks, so that all plan alike: the fewest SMs, and the most ranks on one device.
[[nodiscard]] DeviceCaps common_caps(std::span<const RankDevice> devices);

/// All ranks are under one kernel.
[[nodiscard]] bool is_one_host(const Exchange& exchange);
/// Ranks of several hosts, and why that does not work, as far as the ranks said.
[[nodiscard]] Error hosts_error(const Exchange& exchange, std::span<const Outcome> ranks);
/// Throws Error(kUnsupported) where ranks of several hosts cannot share memory by fabric handle.
void require_fabric(const Exchange& exchange, MemoryKind asked, std::span<const RankDevice> devices);

/// The kinds to try, in order.
[[nodiscard]] std::vector<MemoryKind> kinds_to_try(MemoryKind asked, bool is_one_host,
                                                   std::span<const RankDevice> devices);
/// What became of one kind.
struct Attempt {
  MemoryKind kind = MemoryKind::kAuto;
  std::vector<Outcome> ranks;
};
/// The first that worked on all ranks, or null.
[[nodiscard]] const Attempt* chosen(std::span<const Attempt> attempts) noexcept;
[[nodiscard]] std::string reason_of(std::span<const Attempt> attempts);
/// Where none worked.
[[nodiscard]] Error no_kind_error(const std::string& group, std::span<const Attempt> attempts);
/// A step that has no alternative failed on some rank. `purpose` stands after "cannot".
[[nodiscard]] Error step_error(const std::string& purpose, std::span<const Outcome> ranks);
[[nodiscard]] std::string sharing_purpose(const std::string& group);

}  // namespace commfuse::runtime
