#include "sim/pending_stores.hpp"

#include <algorithm>
#include <utility>

namespace commfuse::sim {

std::size_t PendingStores::slot_of(u64 key) const {
  const std::size_t last = index_.size() - 1;
  std::size_t slot = home(key);
  while (index_[slot] != 0 && words_[index_[slot] - 1].key != key) slot = (slot + 1) & last;
  return slot;
}

u32 PendingStores::position_of(u64 key) const {
  if (indexed_) return index_[slot_of(key)] - 1;
  for (u32 position = 0; position < words_.size(); ++position) {
    if (words_[position].key == key) return position;
  }
  return kNowhere;
}

void PendingStores::swap_words(u32 a, u32 b) {
  if (a == b) return;
  if (indexed_) {
    // Both slots first: while the words change places, the index leads to the wrong ones.
    const std::size_t slot_a = slot_of(words_[a].key);
    const std::size_t slot_b = slot_of(words_[b].key);
    std::swap(index_[slot_a], index_[slot_b]);
  }
  std::swap(words_[a], words_[b]);
}

void PendingStores::build_index(std::size_t slots) {
  index_.assign(slots, 0);
  index_shift_ = 64 - static_cast<u32>(__builtin_ctzll(slots));
  for (u32 position = 0; position < words_.size(); ++position) index_[slot_of(words_[position].key)] = position + 1;
  indexed_ = true;
}

void PendingStores::put(const Word& word) {
  u32 position = position_of(word.key);
  if (position == kNowhere) {
    if (words_.empty()) {
      place_in_totals_ = static_cast<u32>(totals_->sets.size());
      totals_->sets.push_back(this);
    }
    position = size();
    words_.push_back({word.key, 0, 0, false});
    ++totals_->words;
    const bool full = words_.size() * 2 > index_.size();
    if (indexed_ ? full : words_.size() > kMaxUnindexed) {
      build_index(full ? std::max<std::size_t>(32, index_.size() * 2) : index_.size());
    } else if (indexed_) {
      index_[slot_of(word.key)] = position + 1;
    }
  }
  u32 bytes = 0;
  for (u32 byte = 0; byte < 4; ++byte) {
    if ((word.mask >> byte & 1u) != 0) bytes |= 0xffu << 8 * byte;
  }
  Word& entry = words_[position];
  entry.value = (entry.value & ~bytes) | (word.value & bytes);
  entry.mask = static_cast<u8>(entry.mask | word.mask);
  if (word.eager && !entry.eager) {
    entry.eager = true;
    ++totals_->eager_words;
    swap_words(position, eager_++);
  }
}

void PendingStores::forget_slot(u64 key) {
  const std::size_t last = index_.size() - 1;
  std::size_t gap = slot_of(key);
  // Close the gap: move back every entry of the run whose home does not lie between the gap and itself.
  for (std::size_t next = (gap + 1) & last; index_[next] != 0; next = (next + 1) & last) {
    if (((next - home(words_[index_[next] - 1].key)) & last) >= ((next - gap) & last)) {
      index_[gap] = index_[next];
      gap = next;
    }
  }
  index_[gap] = 0;
}

void PendingStores::erase(u64 key) {
  u32 position = position_of(key);
  if (position == kNowhere) return;
  if (size() == 1) {
    clear();
    return;
  }
  if (position < eager_) {
    --totals_->eager_words;
    swap_words(position, --eager_);
    position = eager_;
  }
  swap_words(position, size() - 1);
  if (indexed_) forget_slot(key);
  words_.pop_back();
  --totals_->words;
}

void PendingStores::leave_totals() {
  totals_->sets[place_in_totals_] = totals_->sets.back();
  totals_->sets[place_in_totals_]->place_in_totals_ = place_in_totals_;
  totals_->sets.pop_back();
}

void PendingStores::make_eager() {
  totals_->eager_words += size() - eager_;
  for (u32 position = eager_; position < size(); ++position) words_[position].eager = true;
  eager_ = size();
}

void PendingStores::clear() {
  if (words_.empty()) return;
  leave_totals();
  totals_->words -= words_.size();
  totals_->eager_words -= eager_;
  if (indexed_) std::fill(index_.begin(), index_.end(), 0);
  indexed_ = false;
  eager_ = 0;
  words_.clear();
}

}  // namespace commfuse::sim
