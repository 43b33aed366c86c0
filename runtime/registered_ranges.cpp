#include "runtime/registered_ranges.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "commfuse/error.hpp"

namespace commfuse::runtime {

void require_registrable(std::uintptr_t pointer, std::uint64_t bytes) {
  constexpr std::uintptr_t kAlignment = 16;
  const auto refuse = [&](std::string cause) {
    throw Error(Code::kInvalidArgument, fmt::format("cannot register {} bytes at {:#x}", bytes, pointer),
                std::move(cause), "Register device memory that is aligned to 16 bytes");
  };
  if (pointer == 0) refuse("the pointer is null");
  if (bytes == 0) refuse("there are none");
  if (pointer % kAlignment != 0) refuse("it is not aligned to 16 bytes");
  if (bytes > UINTPTR_MAX - pointer) refuse("they reach beyond the address space");
}

const RegisteredRange* RegisteredRanges::overlapping(std::uintptr_t base, std::size_t bytes) const noexcept {
  // The first that ends behind `base`.
  const auto found = std::partition_point(entries_.begin(), entries_.end(), [base](const Entry& entry) {
    return entry.range.base + entry.range.bytes <= base;
  });
  return found != entries_.end() && found->range.base < base + bytes ? &found->range : nullptr;
}

const RegisteredRange* RegisteredRanges::holding(const void* pointer, std::size_t bytes) const noexcept {
  const auto base = reinterpret_cast<std::uintptr_t>(pointer);
  const RegisteredRange* range = overlapping(base, bytes);
  return range != nullptr && range->base <= base && bytes <= range->base + range->bytes - base ? range : nullptr;
}

DeviceBuffer peer_offsets(const RegisteredRange& range) {
  std::array<device::u64, device::kMaxWorldSize> offsets{};
  for (std::size_t rank = 0; rank < offsets.size(); ++rank) {
    if (range.peer_base[rank] != 0) offsets[rank] = range.peer_base[rank] - range.base;
  }
  DeviceBuffer memory(sizeof(offsets));
  memory.upload(offsets.data(), sizeof(offsets));
  return memory;
}

void RegisteredRanges::add(RegisteredRange range, DeviceBuffer offsets) {
  range.peer_offset = offsets.as<const device::u64>();
  const auto behind = std::partition_point(entries_.begin(), entries_.end(),
                                           [&](const Entry& entry) { return entry.range.base < range.base; });
  entries_.insert(behind, {range, std::move(offsets)});
}

void RegisteredRanges::remove(std::uint64_t id) noexcept {
  std::erase_if(entries_, [id](const Entry& entry) { return entry.range.id == id; });
}

void RegisteredRanges::abandon() noexcept {
  for (Entry& entry : entries_) entry.peer_offset.abandon();
}

}  // namespace commfuse::runtime
