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
    u64 key = 0;  ///< Arena::Key of the word
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
  [[nodiscard]] bool empty() const { return words_.empty(); }
  [[nodiscard]] u32 size() const { return static_cast<u32>(words_.size()); }
  [[nodiscard]] u32 eager_size() const { return eager_; }

  /// The eager words come first.
  [[nodiscard]] const Word& at(u32 position) const { return words_[position]; }
  [[nodiscard]] const Word* find(u64 key) const {
    const u32 position = position_of(key);
    return position == kNowhere ? nullptr : &words_[position];
  }
  /// The newer store wins, byte by byte.
  void put(const Word& word);
  void erase(u64 key);
  void make_eager();

  /// Gives each word to `consume` and empties the set.
  template <typename Consume>
  void drain(Consume&& consume) {
    for (const Word& word : words_) consume(word);
    clear();
  }
  void clear();

 private:
  static constexpr u32 kNowhere = ~0u;
  static constexpr std::size_t kMaxUnindexed = 8;

  [[nodiscard]] u32 position_of(u64 key) const;
  /// The slot of the index that holds `key`, or the empty one where it belongs.
  [[nodiscard]] std::size_t slot_of(u64 key) const;
  [[nodiscard]] std::size_t home(u64 key) const { return (key * 0x9e3779b97f4a7c15ull) >> index_shift_; }
  void swap_words(u32 a, u32 b);
  void build_index(std::size_t slots);
  void forget_slot(u64 key);
  void leave_totals();

  std::vector<Word> words_;
  u32 eager_ = 0;
  u32 index_shift_ = 64;     // 64 - log2(slots)
  std::vector<u32> index_;   // open addressing: position + 1, 0 where empty; a power of two
  bool indexed_ = false;     // few words are searched one by one
  u32 place_in_totals_ = 0;  // in totals_->sets
  PendingTotals* totals_ = nullptr;
  PendingStores* outer_ = nullptr;
};

}  // namespace commfuse::sim
