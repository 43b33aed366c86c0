// Stores that have not reached memory, one entry for each 32-bit word.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/intrinsics.hpp"

namespace commfuse::sim {

class PendingStores;

/// All sets of a world that hold something.
struct PendingTotals {
  std::vector<PendingStores*> sets;
  u64 words = 0;
  u64 eager_words = 0;
};

class PendingStores {
 public:
  struct Word {
    u64 key = 0;  ///< Arena::Key of the word; 0 marks an empty slot
    u32 value = 0;
    u8 mask = 0;  ///< which of its bytes were stored
    bool eager = false;
  };

  PendingStores() = default;
  ~PendingStores() { clear(); }
  PendingStores(const PendingStores&) = delete;
  PendingStores& operator=(const PendingStores&) = delete;

  /// `outer` holds older stores of the same threads; null for the outermost set.
  void attach(PendingTotals* totals, PendingStores* outer) {
    totals_ = totals;
    outer_ = outer;
  }
  [[nodiscard]] PendingStores* outer() const { return outer_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] u32 size() const { return count_; }
  [[nodiscard]] bool has_eager() const { return eager_ != 0; }

  [[nodiscard]] const Word* find(u64 key) const;
  /// The newer store wins, byte by byte.
  void put(const Word& word);
  void erase(u64 key);
  void make_eager();
  /// The first word at or behind a slot chosen by `chance`. The set is not empty.
  [[nodiscard]] const Word& pick(u64 chance) const;
  [[nodiscard]] const Word& pick_eager(u64 chance) const;

  /// Empties the set, giving each word to `consume` in an order that has nothing to do with program order.
  template <typename Consume>
  void drain(Consume&& consume) {
    if (count_ == 0) return;
    for (const Word& word : slots_) {
      if (word.key != 0) consume(word);
    }
    clear();
  }
  void clear();

 private:
  [[nodiscard]] std::size_t home(u64 key) const { return (key * 0x9e3779b97f4a7c15ull) >> shift_; }
  void grow();

  std::vector<Word> slots_;  // open addressing, a power of two
  u32 shift_ = 64;           // 64 - log2(slots)
  u32 count_ = 0;
  u32 eager_ = 0;
  u32 position_ = 0;  // in totals_->sets
  PendingTotals* totals_ = nullptr;
  PendingStores* outer_ = nullptr;
};

}  // namespace commfuse::sim
