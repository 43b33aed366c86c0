#include "sim/arena.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <system_error>

namespace commfuse::sim {
namespace {

constexpr u64 kPage = 4096;
constexpr u64 kAlignment = 256;        // as cudaMalloc gives
constexpr u64 kRedZone = 64ull << 10;  // wide: an index that is wrong by a whole row must not reach the next allocation

void* reserve(u64 bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "reserving simulated memory");
  return memory;
}

}  // namespace

Arena::Arena(u32 ranks, u64 bytes_per_rank)
    : regions_(ranks + 1),
      region_bytes_((bytes_per_rank + kPage - 1) / kPage * kPage),
      size_(region_bytes_ * regions_),
      host_start_(region_bytes_ * ranks),
      base_(static_cast<std::byte*>(reserve(size_, PROT_NONE))),
      shadow_(static_cast<u8*>(reserve(size_ / 4, PROT_READ | PROT_WRITE))) {
  for (u32 region = 0; region < regions_; ++region) top_.push_back(region * region_bytes_ + kRedZone);
}

Arena::~Arena() {
  munmap(base_, size_);
  munmap(shadow_, size_ / 4);
}

Arena::Key Arena::place(u32 region, u64 bytes, std::string_view name, std::byte* adopted) {
  if (region >= regions_)
    throw Failure(FailureKind::kUsage, fmt::format("no rank {} to allocate '{}' for", region, name));
  const Key start = (top_[region] + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > region_bytes_ || start + bytes + kRedZone > (region + 1) * region_bytes_) {
    throw Failure(FailureKind::kUsage,
                  fmt::format("'{}' ({} bytes) does not fit: raise Options::bytes_per_rank", name, bytes));
  }
  top_[region] = start + bytes + kRedZone;
  const auto position = std::upper_bound(allocations_.begin(), allocations_.end(), start,
                                         [](Key key, const Allocation& a) { return key < a.start; });
  allocations_.insert(position, {start, bytes, region, std::string(name), true, adopted});
  std::memset(shadow_ + start / 4, 0xf0, bytes / 4);
  if (bytes % 4 != 0) shadow_[(start + bytes) / 4] = static_cast<u8>(((1u << bytes % 4) - 1) << 4);
  return start;
}

void* Arena::allocate(u32 region, u64 bytes, std::string_view name) {
  const Key start = place(region, bytes, name, nullptr);
  const Key first_page = start / kPage * kPage;
  if (mprotect(base_ + first_page, start + bytes - first_page, PROT_READ | PROT_WRITE) != 0) {
    throw std::system_error(errno, std::generic_category(), "making simulated memory accessible");
  }
  return base_ + start;
}

void Arena::adopt(void* memory, u64 bytes, std::string_view name) {
  if (reinterpret_cast<std::uintptr_t>(memory) % 16 != 0) {
    throw Failure(FailureKind::kUsage, fmt::format("'{}' is not 16-byte aligned", name));
  }
  place(host_region(), bytes, name, static_cast<std::byte*>(memory));
  mark_initialised(memory, bytes);
}

void Arena::deallocate(const void* memory) {
  for (Allocation& a : allocations_) {
    if (!a.live || memory != (a.adopted != nullptr ? a.adopted : base_ + a.start)) continue;
    a.live = false;
    std::memset(shadow_ + a.start / 4, 0, (a.bytes + 3) / 4);
    return;
  }
  throw Failure(FailureKind::kUsage, fmt::format("{} is not the start of a live allocation", memory));
}

bool Arena::live(Key key, u32 bytes) const {
  if (bytes < 4) return live_word(key & ~u64{3}, ((1u << bytes) - 1) << (key & 3));
  u32 all = 0xff;
  for (u32 word = 0; word < bytes / 4; ++word) all &= shadow_[key / 4 + word];
  return (all & 0xf0) == 0xf0;
}

bool Arena::readable(Key key, u32 bytes) const {
  u32 all = 0xff;
  for (u32 word = 0; word < bytes / 4; ++word) all &= shadow_[key / 4 + word];
  return all == 0xff;
}

Arena::Key Arena::adopted_key(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const Allocation& a : allocations_) {
    if (a.adopted != nullptr && a.live && byte >= a.adopted && byte < a.adopted + a.bytes) {
      return a.start + static_cast<u64>(byte - a.adopted);
    }
  }
  return 0;
}

std::byte* Arena::host_memory(Key key) const {
  const Allocation* a = at_or_before(key);
  return a != nullptr && a->adopted != nullptr ? a->adopted + (key - a->start) : base_ + key;
}

const Arena::Allocation* Arena::at_or_before(Key key) const {
  const auto after = std::upper_bound(allocations_.begin(), allocations_.end(), key,
                                      [](Key k, const Allocation& a) { return k < a.start; });
  return after == allocations_.begin() ? nullptr : &*std::prev(after);
}

Arena::Key Arena::host_range(const void* memory, u64 bytes) const {
  const auto offset = static_cast<u64>(static_cast<const std::byte*>(memory) - base_);
  const Key key = offset < size_ ? offset : adopted_key(memory);
  const Allocation* a = at_or_before(key);
  if (key == 0 || a == nullptr || !a->live || key + bytes > a->start + a->bytes) {
    throw Failure(FailureKind::kOutOfBounds, fmt::format("host access of {} bytes at {}", bytes, describe(key)));
  }
  return key;
}

void Arena::mark_initialised(const void* memory, u64 bytes) {
  const Key first = host_range(memory, bytes);
  Key key = first;
  for (; key < first + bytes && key % 4 != 0; ++key) set_initialised(key, 1u << key % 4);
  const Key end = first + bytes;
  if (end > key) std::memset(shadow_ + key / 4, 0xff, (end - key) / 4);
  for (key = std::max(key, end / 4 * 4); key < end; ++key) set_initialised(key, 1u << key % 4);
}

void Arena::require_initialised(const void* memory, u64 bytes) const {
  const Key first = host_range(memory, bytes);
  for (Key key = first; key < first + bytes; ++key) {
    if ((initialised_mask(key) >> key % 4 & 1u) == 0) refuse_uninitialised(key, "host read");
  }
}

std::string Arena::describe(Key key) const {
  if (key == 0) return "an address outside simulated memory";
  const auto owner = [&](const Allocation& a) {
    return a.region == host_region() ? std::string("the host") : fmt::format("rank {}", a.region);
  };
  const auto after = std::upper_bound(allocations_.begin(), allocations_.end(), key,
                                      [](Key k, const Allocation& a) { return k < a.start; });
  if (after != allocations_.end() && after->start - key <= kRedZone / 2) {
    return fmt::format("{} bytes before '{}' ({} bytes) of {}", after->start - key, after->name, after->bytes,
                       owner(*after));
  }
  if (after == allocations_.begin()) return "an address before every allocation";
  const Allocation& a = *std::prev(after);
  const u64 offset = key - a.start;
  if (offset < a.bytes) {
    return fmt::format("byte {} of {} of {}'{}' of {}", offset, a.bytes, a.live ? "" : "deallocated ", a.name,
                       owner(a));
  }
  return fmt::format("{} bytes behind the end of '{}' ({} bytes) of {}", offset - a.bytes, a.name, a.bytes, owner(a));
}

void Arena::refuse(const void* address, Key key, u32 bytes, const char* access) const {
  const std::string where = fmt::format("{} of {} bytes at {}: {}", access, bytes, address, describe(key));
  if (key != 0 && key % bytes != 0) {
    throw Failure(FailureKind::kMisaligned, fmt::format("misaligned {}", where));
  }
  const Allocation* a = key == 0 ? nullptr : at_or_before(key);
  const bool freed = a != nullptr && !a->live && key < a->start + a->bytes;
  throw Failure(freed ? FailureKind::kUseAfterFree : FailureKind::kOutOfBounds,
                fmt::format("{} {}", freed ? "use after free:" : "out of bounds:", where));
}

void Arena::refuse_uninitialised(Key key, const char* access) const {
  throw Failure(FailureKind::kUninitialised, fmt::format("{} of bytes that nobody wrote: {}", access, describe(key)));
}

}  // namespace commfuse::sim
