// Loads, stores, fences and the way of a store to memory. The rules are those of world.hpp.
#include <algorithm>
#include <cstring>

#include "sim/engine.hpp"

namespace commfuse::sim {
namespace {

constexpr u32 kMaxPendingOfThread = 64;  // words; a thread that has more loses one, chosen at random, to memory

u32 byte_mask(u32 mask) {
  u32 bytes = 0;
  for (u32 byte = 0; byte < 4; ++byte) {
    if ((mask >> byte & 1u) != 0) bytes |= 0xffu << 8 * byte;
  }
  return bytes;
}

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

void Engine::apply(const PendingStores::Word& word) {
  if (!arena_.live_word(word.key, word.mask)) {
    throw Failure(FailureKind::kUseAfterFree, "a store reached memory after its deallocation: " +
                                                  arena_.describe(word.key) + " [" + sim::describe(options_) + "]");
  }
  ++delivered_;
  change_memory(word.key, word.value, word.mask);
}

void Engine::deliver_older(PendingStores* set, u64 key) {
  if (set == nullptr) return;
  deliver_older(set->outer(), key);
  if (const PendingStores::Word* word = set->find(key)) {
    apply(*word);
    set->erase(key);
  }
}

void Engine::deliver(PendingStores* outer, const PendingStores::Word& word) {
  deliver_older(outer, word.key);
  apply(word);
}

void Engine::deliver_all(PendingStores& set) {
  set.drain([&](const PendingStores::Word& word) { deliver(set.outer(), word); });
}

void Engine::move(PendingStores& from, PendingStores& to) {
  from.drain([&](const PendingStores::Word& word) {
    to.put(word);
    note_change(word.key);  // for the threads that see it now
  });
}

void Engine::deliver_word_of(Thread& thread, u64 key) {
  for (PendingStores* set = &thread.pending; set != nullptr; set = set->outer()) {
    if (const PendingStores::Word* word = set->find(key)) {
      deliver(set->outer(), *word);
      set->erase(key);
      return;
    }
  }
}

void Engine::deliver_at(PendingStores& set, u32 position) {
  const PendingStores::Word word = set.at(position);
  set.erase(word.key);
  deliver(set.outer(), word);
}

void Engine::deliver_some() {
  u64 budget = std::max<u64>(1, pending_.words / delivery_divisor_);
  while (budget-- > 0 && !pending_.sets.empty()) {
    PendingStores* set = pending_.sets[random_.below(pending_.sets.size())];
    if (weak_drift_) {
      deliver_at(*set, random_.below(set->size()));
      continue;
    }
    if (pending_.eager_words == 0) return;
    for (std::size_t i = random_.below(pending_.sets.size()); set->eager_size() == 0; ++i) {
      set = pending_.sets[i % pending_.sets.size()];
    }
    deliver_at(*set, random_.below(set->eager_size()));
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
  const bool overlaid = options_.weak_memory && pending_.words != 0;
  if (bytes >= 4 && !overlaid) {
    if (!arena_.readable(key, bytes)) arena_.refuse_uninitialised(key, "load");
    std::memcpy(value, arena_.memory(key), bytes);
    return;
  }
  // From the oldest store that this thread sees to its own.
  PendingStores* chain[4];
  u32 depth = 0;
  for (PendingStores* set = &thread.pending; set != nullptr; set = set->outer()) {
    if (!set->empty()) chain[depth++] = set;
  }
  const u64 first = key & ~u64{3};
  const u32 words = bytes < 4 ? 1 : bytes / 4;
  u32 result[4];
  for (u32 i = 0; i < words; ++i) {
    const u64 word_key = first + 4 * i;
    u32 written = arena_.initialised_mask(word_key);
    u32 word = 0;
    std::memcpy(&word, arena_.memory(first) + 4 * i, 4);
    for (u32 level = depth; level-- > 0;) {
      const PendingStores::Word* store = chain[level]->find(word_key);
      if (store == nullptr) continue;
      const u32 replaced = byte_mask(store->mask);
      word = (word & ~replaced) | (store->value & replaced);
      written |= store->mask;
    }
    const u32 needed = bytes < 4 ? ((1u << bytes) - 1) << (key & 3) : 0xfu;
    if ((written & needed) != needed) arena_.refuse_uninitialised(word_key, "load");
    result[i] = word;
  }
  std::memcpy(value, reinterpret_cast<const std::byte*>(result) + (key & 3), bytes);
}

void Engine::store(Thread& thread, void* address, const void* value, u32 bytes, bool eager) {
  count_operation(thread);
  const u64 key = arena_.check(address, bytes, "store");
  const u64 first = key & ~u64{3};
  const u32 words = bytes < 4 ? 1 : bytes / 4;
  const u32 mask = bytes < 4 ? ((1u << bytes) - 1) << (key & 3) : 0xfu;
  u32 content[4] = {};
  std::memcpy(reinterpret_cast<std::byte*>(content) + (key & 3), value, bytes);
  for (u32 i = 0; i < words; ++i) {
    if (!options_.weak_memory) {
      change_memory(first + 4 * i, content[i], mask);
      continue;
    }
    thread.pending.put({first + 4 * i, content[i], static_cast<u8>(mask), eager});
    if (thread.pending.size() > kMaxPendingOfThread) {
      deliver_at(thread.pending, random_.below(thread.pending.size()));
    }
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
