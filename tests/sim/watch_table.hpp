// Which spinning threads wait for which memory, so that a thread polls again when something it read has changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sim/device_state.hpp"

namespace commfuse::sim {

class WatchTable {
 public:
  /// Memory is watched in units of one vector.
  static u64 unit_of(u64 key) { return key >> 4; }

  [[nodiscard]] bool changed_since(u64 unit, u64 time) const { return bucket(unit).changed_at > time; }
  void watch(Thread& thread, u64 unit) {
    Bucket& b = bucket(unit);
    if (b.entries.size() >= b.compact_at) compact(b);
    b.entries.push_back({&thread, unit, thread.wakes});
  }
  /// Notes a change and calls `wake` for every thread that spins on the unit.
  template <typename Wake>
  void changed(u64 unit, u64 time, Wake&& wake) {
    Bucket& b = bucket(unit);
    b.changed_at = time;
    for (std::size_t i = 0; i < b.entries.size();) {
      const Entry entry = b.entries[i];
      if (entry.unit != unit && entry.current()) {
        ++i;
        continue;
      }
      b.entries[i] = b.entries.back();
      b.entries.pop_back();
      if (entry.current()) wake(*entry.thread);
    }
  }

 private:
  struct Entry {
    Thread* thread;
    u64 unit;
    u64 wakes;  ///< Thread::wakes when it began to watch: the entry is void once the thread has been woken
    [[nodiscard]] bool current() const { return thread->wakes == wakes; }
  };
  struct Bucket {
    u64 changed_at = 0;
    std::size_t compact_at = 16;
    std::vector<Entry> entries;
  };

  static constexpr u32 kBucketBits = 11;
  static std::size_t index(u64 unit) { return (unit * 0x9e3779b97f4a7c15ull) >> (64 - kBucketBits); }
  Bucket& bucket(u64 unit) { return buckets_[index(unit)]; }
  [[nodiscard]] const Bucket& bucket(u64 unit) const { return buckets_[index(unit)]; }
  static void compact(Bucket& b) {
    std::erase_if(b.entries, [](const Entry& entry) { return !entry.current(); });
    b.compact_at = std::max<std::size_t>(16, b.entries.size() * 2);
  }

  std::vector<Bucket> buckets_ = std::vector<Bucket>(1u << kBucketBits);
};

}  // namespace commfuse::sim
