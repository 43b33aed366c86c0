#include "sim/pending_stores.hpp"

#include <algorithm>
#include <utility>

namespace commfuse::sim {
void PendingStores::Cell::merge(const Cell& newer) {
  for (u32 word = 0; word < 4; ++word) {
    const u32 bytes = byte_mask(newer.mask_of(word));
    value[word] = (value[word] & ~bytes) | (newer.value[word] & bytes);
  }
  if (mask == 0) {
    issued = newer.issued;
    origin = newer.origin;
  } else {
    issued = std::min(issued, newer.issued);
    origin.merge(newer.origin);
  }
  mask = static_cast<u16>(mask | newer.mask);
  eager = static_cast<u8>(eager | newer.eager);
}

std::size_t PendingStores::slot_of(u64 key) const {
  const std::size_t last = index_.size() - 1;
  std::size_t slot = home(key);
  while (index_[slot] != 0 && cells_[index_[slot] - 1].key != key) slot = (slot + 1) & last;
  return slot;
}

u32 PendingStores::position_of(u64 key) const {
  if (indexed_) return index_[slot_of(key)] - 1;
  for (u32 position = 0; position < cells_.size(); ++position) {
    if (cells_[position].key == key) return position;
  }
  return kNowhere;
}

void PendingStores::swap_cells(u32 a, u32 b) {
  if (a == b) return;
  if (indexed_) {
    // Both slots first: while the cells change places, the index leads to the wrong ones.
    const std::size_t slot_a = slot_of(cells_[a].key);
    const std::size_t slot_b = slot_of(cells_[b].key);
    std::swap(index_[slot_a], index_[slot_b]);
  }
  std::swap(cells_[a], cells_[b]);
}

void PendingStores::build_index(std::size_t slots) {
  index_.assign(slots, 0);
  index_shift_ = 64 - static_cast<u32>(__builtin_ctzll(slots));
  for (u32 position = 0; position < cells_.size(); ++position) index_[slot_of(cells_[position].key)] = position + 1;
  indexed_ = true;
}

void PendingStores::put(const Cell& cell) {
  u32 position = position_of(cell.key);
  if (position == kNowhere) {
    if (cells_.empty()) join(totals_->sets, &PendingStores::place_in_sets_);
    position = size();
    cells_.push_back({.key = cell.key});
    ++totals_->cells;
    const bool full = cells_.size() * 2 > index_.size();
    if (indexed_ ? full : cells_.size() > kMaxUnindexed) {
      build_index(full ? std::max<std::size_t>(32, index_.size() * 2) : index_.size());
    } else if (indexed_) {
      index_[slot_of(cell.key)] = position + 1;
    }
  }
  Cell& entry = cells_[position];
  const bool was_eager = entry.eager != 0;
  entry.merge(cell);
  if (entry.eager != 0 && !was_eager) {
    if (eager_ == 0) join(totals_->eager_sets, &PendingStores::place_in_eager_sets_);
    ++totals_->eager_cells;
    swap_cells(position, eager_++);
  }
}

void PendingStores::forget_slot(u64 key) {
  const std::size_t last = index_.size() - 1;
  std::size_t gap = slot_of(key);
  // Close the gap: move back every entry of the run whose home does not lie between the gap and itself.
  for (std::size_t next = (gap + 1) & last; index_[next] != 0; next = (next + 1) & last) {
    if (((next - home(cells_[index_[next] - 1].key)) & last) >= ((next - gap) & last)) {
      index_[gap] = index_[next];
      gap = next;
    }
  }
  index_[gap] = 0;
}

void PendingStores::make_passive(u32& position) {
  --totals_->eager_cells;
  swap_cells(position, --eager_);
  if (eager_ == 0) leave(totals_->eager_sets, &PendingStores::place_in_eager_sets_);
  position = eager_;
}

void PendingStores::erase_word(u64 key, u32 word) {
  u32 position = position_of(key);
  if (position == kNowhere) return;
  Cell& cell = cells_[position];
  cell.mask = static_cast<u16>(cell.mask & ~(0xfu << 4 * word));
  cell.eager = static_cast<u8>(cell.eager & ~(1u << word));
  if (cell.mask == 0) {
    erase(position);
  } else if (cell.eager == 0 && position < eager_) {
    make_passive(position);
  }
}

void PendingStores::erase(u32 position) {
  if (size() == 1) {
    clear();
    return;
  }
  if (position < eager_) make_passive(position);
  swap_cells(position, size() - 1);
  if (indexed_) forget_slot(cells_.back().key);
  cells_.pop_back();
  --totals_->cells;
}

void PendingStores::join(std::vector<PendingStores*>& sets, u32 PendingStores::*place) {
  this->*place = static_cast<u32>(sets.size());
  sets.push_back(this);
}

void PendingStores::leave(std::vector<PendingStores*>& sets, u32 PendingStores::*place) {
  sets[this->*place] = sets.back();
  sets[this->*place]->*place = this->*place;
  sets.pop_back();
}

void PendingStores::make_eager() {
  if (eager_ == 0 && !empty()) join(totals_->eager_sets, &PendingStores::place_in_eager_sets_);
  totals_->eager_cells += size() - eager_;
  // A cell that is eager already may hold words that are not.
  for (Cell& cell : cells_) cell.eager = static_cast<u8>(cell.words());
  eager_ = size();
}

void PendingStores::clear() {
  if (cells_.empty()) return;
  leave(totals_->sets, &PendingStores::place_in_sets_);
  if (eager_ != 0) leave(totals_->eager_sets, &PendingStores::place_in_eager_sets_);
  totals_->cells -= cells_.size();
  totals_->eager_cells -= eager_;
  if (indexed_) std::fill(index_.begin(), index_.end(), 0);
  indexed_ = false;
  eager_ = 0;
  cells_.clear();
}

}  // namespace commfuse::sim
