// Stores that have not reached memory. They are kept by aligned 16-byte cells, since most stores are whole vectors, and
// leave word by word.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/intrinsics.hpp"
#include "sim/value_history.hpp"

namespace commfuse::sim {

class PendingStores;

/// 0b0101 -> 0x00ff00ff.
inline u32 byte_mask(u32 mask) {
  constexpr u32 kOfMask[16] = {0x00000000, 0x000000ff, 0x0000ff00, 0x0000ffff, 0x00ff0000, 0x00ff00ff,
                               0x00ffff00, 0x00ffffff, 0xff000000, 0xff0000ff, 0xff00ff00, 0xff00ffff,
                               0xffff0000, 0xffff00ff, 0xffffff00, 0xffffffff};
  return kOfMask[mask];
}

/// All sets of a world that hold something.
struct PendingTotals {
  std::vector<PendingStores*> sets;
  std::vector<PendingStores*> eager_sets;  ///< that hold an eager word
  u64 cells = 0;
  u64 eager_cells = 0;
};

class PendingStores {
 public:
  struct Cell {
    u64 key = 0;  ///< Arena::Key of its first byte
    u32 value[4] = {};
    u16 mask = 0;  ///< which of its bytes were stored
    u8 eager = 0;  ///< which of its words must reach memory in finite time, a bit for each
    [[nodiscard]] u32 mask_of(u32 word) const { return mask >> 4 * word & 0xfu; }
    /// Bit i: word i holds something.
    [[nodiscard]] u32 words() const {
      return (mask_of(0) != 0 ? 1u : 0) | (mask_of(1) != 0 ? 2u : 0) | (mask_of(2) != 0 ? 4u : 0) |
             (mask_of(3) != 0 ? 8u : 0);
    }
    u64 issued = 0;  ///< step of the first of its stores
    Origin origin = {};
    /// Overwrites the bytes that `newer` holds.
    void merge(const Cell& newer);
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
  [[nodiscard]] bool empty() const { return cells_.empty(); }
  [[nodiscard]] u32 size() const { return static_cast<u32>(cells_.size()); }
  [[nodiscard]] u32 eager_size() const { return eager_; }

  /// Cells with eager words come first.
  [[nodiscard]] const Cell& at(u32 position) const { return cells_[position]; }
  [[nodiscard]] const Cell* find(u64 key) const {
    const u32 position = position_of(key);
    return position == kNowhere ? nullptr : &cells_[position];
  }
  void put(const Cell& cell);
  void erase_word(u64 key, u32 word);
  void make_eager();

  /// Gives each cell to `consume` and empties the set.
  template <typename Consume>
  void drain(Consume&& consume) {
    for (const Cell& cell : cells_) consume(cell);
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
  void swap_cells(u32 a, u32 b);
  void build_index(std::size_t slots);
  void forget_slot(u64 key);
  void erase(u32 position);
  void make_passive(u32& position);
  void join(std::vector<PendingStores*>& sets, u32 PendingStores::*place);
  void leave(std::vector<PendingStores*>& sets, u32 PendingStores::*place);

  std::vector<Cell> cells_;
  u32 eager_ = 0;
  u32 index_shift_ = 64;    // 64 - log2(slots)
  std::vector<u32> index_;  // open addressing: position + 1, 0 where empty; a power of two
  bool indexed_ = false;    // few cells are searched one by one
  u32 place_in_sets_ = 0;   // of totals_
  u32 place_in_eager_sets_ = 0;
  PendingTotals* totals_ = nullptr;
  PendingStores* outer_ = nullptr;
};

}  // namespace commfuse::sim
