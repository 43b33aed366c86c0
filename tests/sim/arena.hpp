// The simulated machine's memory: one reserved range of addresses, a region for each rank and one for the host, and a
// shadow byte per 32-bit word that says which of its bytes are allocated and which were written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sim/intrinsics.hpp"
#include "sim/options.hpp"

namespace commfuse::sim {

class Arena {
 public:
  /// Offset of an address in the arena: the same in every execution, unlike the address. Never 0.
  using Key = u64;

  Arena(u32 ranks, u64 bytes_per_rank);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(u32 region, u64 bytes, std::string_view name);
  /// Memory of the program's own, in the host's region.
  void adopt(void* memory, u64 bytes, std::string_view name);
  void deallocate(const void* memory);
  [[nodiscard]] u32 host_region() const { return regions_ - 1; }

  /// The key of an aligned access of live memory; throws Failure otherwise, naming `access`.
  Key check(const void* address, u32 bytes, const char* access) const {
    const u64 offset = static_cast<u64>(static_cast<const std::byte*>(address) - base_);
    const Key key = offset < size_ ? offset : adopted_key(address);
    if (key == 0 || (key & (bytes - 1)) != 0 || !live(key, bytes)) refuse(address, key, bytes, access);
    return key;
  }
  /// Which bytes (bit 0: the lowest address) of the word that holds `key` were written.
  [[nodiscard]] u32 initialised_mask(Key key) const { return shadow_[key >> 2] & 0xfu; }
  void set_initialised(Key key, u32 mask) { shadow_[key >> 2] = static_cast<u8>(shadow_[key >> 2] | mask); }
  [[nodiscard]] bool live_word(Key key, u32 mask) const { return ((shadow_[key >> 2] >> 4) & mask) == mask; }
  /// Whether all of an aligned 4, 8 or 16 bytes are live and written.
  [[nodiscard]] bool readable(Key key, u32 bytes) const;
  [[nodiscard]] std::byte* memory(Key key) const { return key < host_start_ ? base_ + key : host_memory(key); }

  void mark_initialised(const void* memory, u64 bytes);
  void require_initialised(const void* memory, u64 bytes) const;
  [[noreturn]] void refuse_uninitialised(Key key, const char* access) const;
  /// "0x7f… ('flag' of rank 1, byte 12 of 64)".
  [[nodiscard]] std::string describe(Key key) const;

 private:
  struct Allocation {
    Key start;
    u64 bytes;
    u32 region;
    std::string name;
    bool live;
    std::byte* adopted;  // null: in the arena
  };

  Key place(u32 region, u64 bytes, std::string_view name, std::byte* adopted);
  [[nodiscard]] bool live(Key key, u32 bytes) const;
  [[nodiscard]] Key adopted_key(const void* address) const;
  [[nodiscard]] std::byte* host_memory(Key key) const;
  [[nodiscard]] const Allocation* at_or_before(Key key) const;
  /// The key of host-side access to [memory, memory + bytes), which must be live.
  [[nodiscard]] Key host_range(const void* memory, u64 bytes) const;
  [[noreturn]] void refuse(const void* address, Key key, u32 bytes, const char* access) const;

  u32 regions_;
  u64 region_bytes_;
  u64 size_;
  Key host_start_;
  std::byte* base_;
  u8* shadow_;                           // per word: bits 0-3 written, bits 4-7 allocated, a bit for each byte
  std::vector<Key> top_;                 // of each region
  std::vector<Allocation> allocations_;  // sorted by start
};

}  // namespace commfuse::sim
