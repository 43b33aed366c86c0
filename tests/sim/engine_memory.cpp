// Loads, stores, fences and the way of a store to memory. The rules are those of world.hpp.
#include <algorithm>
#include <bit>
#include <cstring>

#include "sim/engine.hpp"

namespace commfuse::sim {
namespace {

constexpr u32 kMaxPendingOfThread = 32;  // cells; a thread that has more loses a word, chosen at random, to memory

u64 cell_of(u64 key) { return key & ~u64{15}; }

}  // namespace

void Engine::change_memory(u64 key, u32 value, u32 mask) {
  std::byte* memory = arena_.memory(key);
  if (mask == 0xf) {
    u32 old;
    std::memcpy(&old, memory, 4);
    if (old == value && arena_.initialised_mask(key) == 0xf) return;
    std::memcpy(memory, &value, 4);
  } else {
    for (u32 byte = 0; byte < 4; ++byte) {
      if ((mask >> byte & 1u) != 0) memory[byte] = static_cast<std::byte>(value >> 8 * byte);
    }
  }
  arena_.set_initialised(key, mask);
  note_change(key);
}

void Engine::note_change(u64 key) {
  ++changes_;
  watches_.changed(WatchTable::unit_of(key), changes_, [this](Thread& thread) {
    stop_watching(thread);
    wake(thread);
  });
}

void Engine::apply(const PendingStores::Cell& cell, u32 word) {
  const u64 key = cell.key + 4 * word;
  if (!arena_.live_word(key, cell.mask_of(word))) {
    throw Failure(FailureKind::kUseAfterFree, "a store reached memory after its deallocation: " + arena_.describe(key) +
                                                  " [" + sim::describe(options_) + "]");
  }
  ++delivered_;
  change_memory(key, cell.value[word], cell.mask_of(word));
}

void Engine::deliver_older(PendingStores* set, u64 key, u32 word) {
  if (set == nullptr) return;
  deliver_older(set->outer(), key, word);
  if (const PendingStores::Cell* cell = set->find(key); cell != nullptr && cell->mask_of(word) != 0) {
    apply(*cell, word);
    set->erase_word(key, word);
  }
}

void Engine::deliver(PendingStores* outer, const PendingStores::Cell& cell, u32 word) {
  deliver_older(outer, cell.key, word);
  apply(cell, word);
}

void Engine::deliver_all(PendingStores& set) {
  set.drain([&](const PendingStores::Cell& cell) {
    for (u32 word = 0; word < 4; ++word) {
      if (cell.mask_of(word) != 0) deliver(set.outer(), cell, word);
    }
  });
}

void Engine::move(PendingStores& from, PendingStores& to) {
  from.drain([&](const PendingStores::Cell& cell) {
    to.put(cell);
    note_change(cell.key);  // for the threads that see it now
  });
}

void Engine::deliver_word_of(Thread& thread, u64 key) {
  deliver_older(&thread.pending, cell_of(key), static_cast<u32>(key >> 2 & 3));
}

void Engine::deliver_word_at(PendingStores& set, u32 position, bool only_eager) {
  const PendingStores::Cell cell = set.at(position);
  u32 words = only_eager ? cell.eager : cell.words();
  for (u32 skip = random_.below(std::popcount(words)); skip > 0; --skip) words &= words - 1;
  const u32 word = std::countr_zero(words);
  set.erase_word(cell.key, word);
  deliver(set.outer(), cell, word);
}

void Engine::deliver_some() {
  u64 budget = std::max<u64>(1, 4 * pending_.cells / delivery_divisor_);
  while (budget-- > 0 && !pending_.sets.empty()) {
    PendingStores* set = pending_.sets[random_.below(pending_.sets.size())];
    if (weak_drift_) {
      deliver_word_at(*set, random_.below(set->size()), false);
      continue;
    }
    if (pending_.eager_cells == 0) return;
    for (std::size_t i = random_.below(pending_.sets.size()); set->eager_size() == 0; ++i) {
      set = pending_.sets[i % pending_.sets.size()];
    }
    deliver_word_at(*set, random_.below(set->eager_size()), true);
  }
}

void Engine::load(Thread& thread, const void* address, void* value, u32 bytes) {
  count_operation(thread);
  const u64 key = arena_.check(address, bytes, "load");
  thread.last_load = key;
  const u64 unit = WatchTable::unit_of(key);
  if (thread.watched == 0 || thread.watched > kMaxWatched || thread.watch[thread.watched - 1] != unit) {
    if (thread.watched < kMaxWatched) thread.watch[thread.watched] = unit;
    if (thread.watched <= kMaxWatched) ++thread.watched;
  }
  if (bytes >= 4 && pending_.cells == 0) {
    if (!arena_.readable(key, bytes)) arena_.refuse_uninitialised(key, "load");
    std::memcpy(value, arena_.memory(key), bytes);
    return;
  }
  // Memory, and over it the stores that this thread sees: from the oldest to its own.
  const u64 cell_key = cell_of(key);
  const u32 first_word = static_cast<u32>(key >> 2 & 3);
  const u32 words = bytes < 4 ? 1 : bytes / 4;
  PendingStores::Cell seen;
  std::memcpy(&seen.value[first_word], arena_.memory(key & ~u64{3}), 4 * words);
  for (u32 word = first_word; word < first_word + words; ++word) {
    seen.mask = static_cast<u16>(seen.mask | arena_.initialised_mask(cell_key + 4 * word) << 4 * word);
  }
  overlay(seen, &thread.pending, cell_key);
  const u32 needed = ((1u << bytes) - 1) << (key & 15);
  if ((seen.mask & needed) != needed) arena_.refuse_uninitialised(key, "load");
  std::memcpy(value, reinterpret_cast<const std::byte*>(seen.value) + (key & 15), bytes);
}

void Engine::overlay(PendingStores::Cell& seen, const PendingStores* set, u64 cell_key) {
  if (set == nullptr) return;
  overlay(seen, set->outer(), cell_key);
  if (const PendingStores::Cell* cell = set->find(cell_key)) seen.merge(*cell);
}

void Engine::store(Thread& thread, void* address, const void* value, u32 bytes, bool eager) {
  count_operation(thread);
  const u64 key = arena_.check(address, bytes, "store");
  PendingStores::Cell cell{.key = cell_of(key)};
  std::memcpy(reinterpret_cast<std::byte*>(cell.value) + (key & 15), value, bytes);
  cell.mask = static_cast<u16>(((1u << bytes) - 1) << (key & 15));
  if (!options_.weak_memory) {
    for (u32 word = 0; word < 4; ++word) {
      if (cell.mask_of(word) != 0) change_memory(cell.key + 4 * word, cell.value[word], cell.mask_of(word));
    }
    return;
  }
  if (eager) cell.eager = static_cast<u8>(cell.words());
  thread.pending.put(cell);
  if (thread.pending.size() > kMaxPendingOfThread) {
    deliver_word_at(thread.pending, random_.below(thread.pending.size()), false);
  }
}

void Engine::fence(Thread& thread, Scope scope) {
  count_operation(thread);
  PendingStores& device = *thread.block->cluster->ordered.outer();
  if (scope == Scope::kDevice) {
    move(thread.block->cluster->ordered, device);
    move(thread.block->ordered, device);
    move(thread.pending, device);
    return;
  }
  for (PendingStores* set = &thread.pending; set != nullptr; set = set->outer()) deliver_all(*set);
}

}  // namespace commfuse::sim
