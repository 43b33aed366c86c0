#include "runtime/group_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/exchange/bytes.hpp"

namespace commfuse {

std::string_view to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kAuto:
      return "auto";
    case MemoryKind::kVmmDescriptor:
      return "vmm_descriptor";
    case MemoryKind::kLegacyIpc:
      return "legacy_ipc";
    case MemoryKind::kVmmFabric:
      return "vmm_fabric";
  }
  return "unknown";
}

namespace runtime {
namespace {

constexpr std::size_t kMaxText = 2000;

std::string making(const std::string& group) { return "cannot " + sharing_purpose(group); }

const Outcome& first_failure(std::span<const Outcome> ranks) {
  return *std::find_if(ranks.begin(), ranks.end(), [](const Outcome& outcome) { return outcome.code != Code::kOk; });
}

}  // namespace

bool all_ok(std::span<const Outcome> ranks) noexcept {
  return std::all_of(ranks.begin(), ranks.end(), [](const Outcome& outcome) { return outcome.code == Code::kOk; });
}

std::string failures_text(std::span<const Outcome> ranks) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].code == Code::kOk) continue;
    const auto same = [&](const Outcome& other) {
      return other.code == ranks[rank].code && other.trouble == ranks[rank].trouble;
    };
    const auto here = ranks.begin() + static_cast<std::ptrdiff_t>(rank);
    if (std::find_if(ranks.begin(), here, same) != here) continue;
    const auto alike = std::count_if(here + 1, ranks.end(), same);
    if (!text.empty()) text += "; ";
    text += fmt::format("rank {}: {}", rank, ranks[rank].trouble);
    if (alike > 0) text += fmt::format(" (likewise {} more)", alike);
  }
  return text;
}

Blob write_outcome(const Outcome& outcome, std::span<const std::byte> payload) {
  ByteWriter writer;
  writer.integer(static_cast<std::uint32_t>(outcome.code));
  writer.text(outcome.trouble, kMaxText);
  writer.text(outcome.remedy, kMaxText);
  writer.raw(payload);
  return writer.take();
}

ReadOutcome read_outcome(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  ReadOutcome result;
  const auto code = reader.integer<std::uint32_t>();
  result.outcome.trouble = reader.text(kMaxText);
  result.outcome.remedy = reader.text(kMaxText);
  const auto payload = reader.raw(reader.left());
  if (!reader.is_good() || code > static_cast<std::uint32_t>(Code::kInternal)) {
    return {
        {Code::kInvalidInput, "it sent a message that does not follow the format", "Start the same build on all ranks"},
        {}};
  }
  result.outcome.code = static_cast<Code>(code);
  result.payload.assign(payload.begin(), payload.end());
  return result;
}

Blob RankDevice::write() const {
  ByteWriter writer;
  writer.raw(uuid);
  writer.integer(static_cast<std::uint32_t>(sm_count));
  writer.integer(static_cast<std::uint8_t>(has_fabric));
  return writer.take();
}

RankDevice RankDevice::read(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  RankDevice device;
  const auto uuid = reader.raw(device.uuid.size());
  device.sm_count = static_cast<int>(reader.integer<std::uint32_t>());
  device.has_fabric = reader.integer<std::uint8_t>() != 0;
  if (!reader.is_finished() || device.sm_count < 1) {
    throw Error(Code::kInvalidInput, "cannot read a peer's description of its device", "it does not follow the format",
                "Start the same build on all ranks");
  }
  std::copy(uuid.begin(), uuid.end(), device.uuid.begin());
  return device;
}

DeviceCaps common_caps(std::span<const RankDevice> devices) {
  DeviceCaps caps;
  std::map<DeviceUuid, int> ranks_on;
  caps.sm_count = devices.front().sm_count;
  for (const RankDevice& device : devices) {
    caps.sm_count = std::min(caps.sm_count, device.sm_count);
    caps.ranks_on_device = std::max(caps.ranks_on_device, ++ranks_on[device.uuid]);
  }
  return caps;
}

namespace {

/// The first rank that runs on another host than rank 0; 0 if there is none.
int first_elsewhere(const Exchange& exchange) {
  for (int rank = 1; rank < exchange.size(); ++rank) {
    if (exchange.host(rank).host != exchange.host(0).host) return rank;
  }
  return 0;
}

Error hosts_error_for(const Exchange& exchange, const std::string& reason) {
  const int rank = first_elsewhere(exchange);
  return Error(Code::kUnsupported, making(exchange.group()),
               fmt::format("rank 0 runs on host {} and rank {} on host {}; memory is shared between hosts by fabric "
                           "handles only, and {}",
                           exchange.host(0).name, rank, exchange.host(rank).name, reason),
               "Make one group per host (Exchange::split), or use GPUs of one NVLink domain with the IMEX service");
}

}  // namespace

bool is_one_host(const Exchange& exchange) { return first_elsewhere(exchange) == 0; }

Error hosts_error(const Exchange& exchange, std::span<const Outcome> ranks) {
  return hosts_error_for(exchange, failures_text(ranks));
}

void require_fabric(const Exchange& exchange, MemoryKind asked, std::span<const RankDevice> devices) {
  if (asked != MemoryKind::kAuto && asked != MemoryKind::kVmmFabric) {
    throw hosts_error_for(exchange, fmt::format("{} was asked for", to_string(asked)));
  }
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    if (!devices[rank].has_fabric) throw hosts_error_for(exchange, fmt::format("the GPU of rank {} has none", rank));
  }
}

std::vector<MemoryKind> kinds_to_try(MemoryKind asked, bool is_one_host, std::span<const RankDevice> devices) {
  if (asked != MemoryKind::kAuto) return {asked};
  if (!is_one_host) return {MemoryKind::kVmmFabric};
  if (std::all_of(devices.begin(), devices.end(), [](const RankDevice& device) { return device.has_fabric; })) {
    return {MemoryKind::kVmmDescriptor, MemoryKind::kVmmFabric, MemoryKind::kLegacyIpc};
  }
  return {MemoryKind::kVmmDescriptor, MemoryKind::kLegacyIpc};
}

const Attempt* chosen(std::span<const Attempt> attempts) noexcept {
  const auto found =
      std::find_if(attempts.begin(), attempts.end(), [](const Attempt& attempt) { return all_ok(attempt.ranks); });
  return found == attempts.end() ? nullptr : &*found;
}

std::string reason_of(std::span<const Attempt> attempts) {
  std::string text;
  for (const Attempt& attempt : attempts) {
    if (!text.empty()) text += "; ";
    if (all_ok(attempt.ranks)) return text + fmt::format("{} works on all ranks", to_string(attempt.kind));
    text += fmt::format("{} does not work ({})", to_string(attempt.kind), failures_text(attempt.ranks));
  }
  return text;
}

Error no_kind_error(const std::string& group, std::span<const Attempt> attempts) {
  // What failed first is what was wanted most.
  const Outcome& first = first_failure(attempts.front().ranks);
  std::string remedy = first.remedy;
  if (remedy.empty()) {
    remedy =
        "Ranks in different containers need a common IPC namespace and a common folder (COMMFUSE_EXCHANGE_DIR); ranks "
        "of one process need an exchange that passes descriptors; 'commfuse doctor' shows what this machine offers";
  }
  return Error(first.code, making(group), reason_of(attempts), std::move(remedy));
}

Error step_error(const std::string& purpose, std::span<const Outcome> ranks) {
  const Outcome& first = first_failure(ranks);
  return Error(first.code, "cannot " + purpose, failures_text(ranks), first.remedy);
}

std::string sharing_purpose(const std::string& group) { return fmt::format("share memory in group '{}'", group); }

}  // namespace runtime
}  // namespace commfuse
