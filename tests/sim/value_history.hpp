// What words held before their last change, for loads that nothing orders after it.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/intrinsics.hpp"

namespace commfuse::sim {

/// The thread that stored something: rank, cluster and thread of the cluster, in one number that merges.
class Origin {
 public:
  Origin() = default;
  Origin(u32 rank, u64 cluster, u32 thread) : packed_(u64{rank} << 56 | (cluster & kMaxCluster) << 16 | thread) {}

  [[nodiscard]] bool same_rank(Origin other) const { return packed_ >> 56 == other.packed_ >> 56; }
  [[nodiscard]] bool same_cluster(Origin other) const { return packed_ >> 16 == other.packed_ >> 16; }
  [[nodiscard]] bool same_thread(Origin other) const { return packed_ == other.packed_; }
  /// What is common to both: threads that differ become no thread in particular, clusters likewise.
  void merge(Origin other) {
    if (!same_cluster(other)) packed_ |= kMaxCluster << 16;
    if (!same_thread(other)) packed_ |= 0xffffu;
  }

 private:
  static constexpr u64 kMaxCluster = (1ull << 40) - 1;
  u64 packed_ = 0;
};

/// Forgets at will: a word that is not found has no older value.
class ValueHistory {
 public:
  struct Entry {
    u64 key = 0;
    u32 old_value = 0;
    u64 issued = 0;  ///< step of the store that changed it
    Origin origin;
  };

  void note(const Entry& entry) { entries_[index(entry.key)] = entry; }
  [[nodiscard]] const Entry* find(u64 key) const {
    const Entry& entry = entries_[index(key)];
    return entry.key == key ? &entry : nullptr;
  }
  void clear() { entries_.assign(entries_.size(), Entry{}); }

 private:
  static std::size_t index(u64 key) { return ((key >> 2) * 0x9e3779b97f4a7c15ull) >> 54; }
  std::vector<Entry> entries_ = std::vector<Entry>(1u << 10);
};

}  // namespace commfuse::sim
