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

void Engine::change_memory(const Change& change) {
  std::byte* memory = arena_.memory(change.key);
  u32 old;
  std::memcpy(&old, memory, 4);
  const bool was_initialised = arena_.initialised_mask(change.key) == 0xf;
  const u32 bytes = byte_mask(change.mask);
  const u32 value = (old & ~bytes) | (change.value & bytes);
  if (old == value && was_initialised) return;
  std::memcpy(memory, &value, 4);
  if (stale_loads_ && was_initialised) history_.note({change.key, old, change.issued, change.origin});
  arena_.set_initialised(change.key, change.mask);
  note_change(change.key);
}

void Engine::make_stale(const Thread& thread, u64 key, u32& value) {
  const ValueHistory::Entry* change = history_.find(key);
  if (change == nullptr || change->origin.same_thread(thread.origin)) return;
  const Acquired& acquired = thread.acquired;
  const u64 ordered_up_to = change->origin.same_cluster(thread.origin) ? acquired.from_cluster
                            : change->origin.same_rank(thread.origin)  ? acquired.from_rank
                                                                       : acquired.from_anywhere;
  if (change->issued > ordered_up_to && random_.one_in(2)) value = change->old_value;
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
  change_memory({key, cell.value[word], cell.mask_of(word), cell.issued, cell.origin});
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
  const std::vector<PendingStores*>& sets = weak_drift_ ? pending_.sets : pending_.eager_sets;
  for (; budget > 0 && !sets.empty(); --budget) {
    PendingStores& set = *sets[random_.below(sets.size())];
    deliver_word_at(set, random_.below(weak_drift_ ? set.size() : set.eager_size()), !weak_drift_);
  }
}

void Engine::load(Thread& thread, const void* address, void* value, u32 bytes, LoadOrder order) {
  count_operation(thread);
  const u64 key = arena_.check(address, bytes, "load");
  thread.last_load = key;
  const u64 unit = WatchTable::unit_of(key);
  if (thread.watched == 0 || thread.watched > kMaxWatched || thread.watch[thread.watched - 1] != unit) {
    if (thread.watched < kMaxWatched) thread.watch[thread.watched] = unit;
    if (thread.watched <= kMaxWatched) ++thread.watched;
  }
  if (order == LoadOrder::kAcquireDevice) acquire(thread, Scope::kDevice);
  if (order == LoadOrder::kAcquireSystem) acquire(thread, Scope::kSystem);
  const bool may_be_stale = stale_loads_ && order == LoadOrder::kWeak;
  if (bytes >= 4 && pending_.cells == 0 && !may_be_stale) {
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
    if (may_be_stale) make_stale(thread, cell_key + 4 * word, seen.value[word]);
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
  PendingStores::Cell cell{.key = cell_of(key), .issued = steps_, .origin = thread.origin};
  std::memcpy(reinterpret_cast<std::byte*>(cell.value) + (key & 15), value, bytes);
  cell.mask = static_cast<u16>(((1u << bytes) - 1) << (key & 15));
  if (!options_.weak_memory) {
    for (u32 word = 0; word < 4; ++word) {
      if (cell.mask_of(word) != 0) apply(cell, word);
    }
    return;
  }
  if (eager) cell.eager = static_cast<u8>(cell.words());
  thread.pending.put(cell);
  if (thread.pending.size() > kMaxPendingOfThread) {
    deliver_word_at(thread.pending, random_.below(thread.pending.size()), false);
  }
}

void Engine::release(Thread& thread, Scope scope) {
  count_operation(thread);
  Rank& rank = ranks_[thread.block->cluster->launch->rank];
  if (scope == Scope::kDevice) {
    rank.acquired.merge(thread.acquired);
    move(thread.block->cluster->ordered, rank.ordered);
    move(thread.block->ordered, rank.ordered);
    move(thread.pending, rank.ordered);
    return;
  }
  for (PendingStores* set = &thread.pending; set != nullptr; set = set->outer()) deliver_all(*set);
}

void Engine::acquire(Thread& thread, Scope scope) {
  if (scope == Scope::kSystem) {
    thread.acquired = everything();
    return;
  }
  thread.acquired.merge(ranks_[thread.block->cluster->launch->rank].acquired);
  thread.acquired.from_cluster = steps_;
  thread.acquired.from_rank = steps_;
}

}  // namespace commfuse::sim
