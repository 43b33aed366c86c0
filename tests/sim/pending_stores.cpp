#include "sim/pending_stores.hpp"

#include <algorithm>

namespace commfuse::sim {

const PendingStores::Word* PendingStores::find(u64 key) const {
  if (count_ == 0) return nullptr;
  const std::size_t last = slots_.size() - 1;
  for (std::size_t slot = home(key); slots_[slot].key != 0; slot = (slot + 1) & last) {
    if (slots_[slot].key == key) return &slots_[slot];
  }
  return nullptr;
}

void PendingStores::put(const Word& word) {
  if ((count_ + 1) * 2 > slots_.size()) grow();
  const std::size_t last = slots_.size() - 1;
  std::size_t slot = home(word.key);
  while (slots_[slot].key != 0 && slots_[slot].key != word.key) slot = (slot + 1) & last;
  Word& entry = slots_[slot];
  if (entry.key == 0) {
    if (count_ == 0) {
      position_ = static_cast<u32>(totals_->sets.size());
      totals_->sets.push_back(this);
    }
    ++count_;
    ++totals_->words;
    entry = {word.key, 0, 0, false};
  }
  u32 bytes = 0;
  for (u32 byte = 0; byte < 4; ++byte) {
    if ((word.mask >> byte & 1u) != 0) bytes |= 0xffu << 8 * byte;
  }
  entry.value = (entry.value & ~bytes) | (word.value & bytes);
  entry.mask = static_cast<u8>(entry.mask | word.mask);
  if (word.eager && !entry.eager) {
    entry.eager = true;
    ++eager_;
    ++totals_->eager_words;
  }
}

void PendingStores::erase(u64 key) {
  if (count_ == 0) return;
  const std::size_t last = slots_.size() - 1;
  std::size_t slot = home(key);
  while (slots_[slot].key != key) {
    if (slots_[slot].key == 0) return;
    slot = (slot + 1) & last;
  }
  if (slots_[slot].eager) {
    --eager_;
    --totals_->eager_words;
  }
  // Close the gap: move back every entry of the run whose home does not lie between the gap and itself.
  std::size_t gap = slot;
  for (std::size_t next = (gap + 1) & last; slots_[next].key != 0; next = (next + 1) & last) {
    if (((next - home(slots_[next].key)) & last) >= ((next - gap) & last)) {
      slots_[gap] = slots_[next];
      gap = next;
    }
  }
  slots_[gap] = Word{};
  --totals_->words;
  if (--count_ == 0) {
    totals_->sets[position_] = totals_->sets.back();
    totals_->sets[position_]->position_ = position_;
    totals_->sets.pop_back();
  }
}

void PendingStores::make_eager() {
  for (Word& word : slots_) word.eager = word.key != 0;
  totals_->eager_words += count_ - eager_;
  eager_ = count_;
}

const PendingStores::Word& PendingStores::pick(u64 chance) const {
  const std::size_t last = slots_.size() - 1;
  std::size_t slot = chance & last;
  while (slots_[slot].key == 0) slot = (slot + 1) & last;
  return slots_[slot];
}

const PendingStores::Word& PendingStores::pick_eager(u64 chance) const {
  const std::size_t last = slots_.size() - 1;
  std::size_t slot = chance & last;
  while (slots_[slot].key == 0 || !slots_[slot].eager) slot = (slot + 1) & last;
  return slots_[slot];
}

void PendingStores::clear() {
  if (count_ == 0) return;
  totals_->words -= count_;
  totals_->eager_words -= eager_;
  totals_->sets[position_] = totals_->sets.back();
  totals_->sets[position_]->position_ = position_;
  totals_->sets.pop_back();
  count_ = 0;
  eager_ = 0;
  std::fill(slots_.begin(), slots_.end(), Word{});
}

void PendingStores::grow() {
  std::vector<Word> old(slots_.empty() ? 8 : slots_.size() * 2);
  old.swap(slots_);
  shift_ = 64 - static_cast<u32>(__builtin_ctzll(slots_.size()));
  const std::size_t last = slots_.size() - 1;
  for (const Word& word : old) {
    if (word.key == 0) continue;
    std::size_t slot = home(word.key);
    while (slots_[slot].key != 0) slot = (slot + 1) & last;
    slots_[slot] = word;
  }
}

}  // namespace commfuse::sim
