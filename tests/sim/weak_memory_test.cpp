// The memory model of world.hpp: the classic failures are seen, and the classic remedies cure them.
#include <gtest/gtest.h>

#include <functional>

#include "sim/ptx.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {
namespace {

namespace ptx = device::ptx;
using device::Vec16;

constexpr u32 kExecutions = 200;

/// Rank 0 runs `writer` and rank `reader_rank` runs `reader`, with 1 KiB of zeroed memory of each rank. `reader`
/// returns whether it saw something unexpected, in any of its threads. Counts the executions in which it did.
struct Memory {
  u32* of_writer;
  u32* of_reader;
};
u32 surprises(u32 reader_rank, u32 threads, const std::function<void(const Memory&)>& writer,
              const std::function<bool(const Memory&)>& reader, bool weak = true) {
  u32 count = 0;
  for (const Options& options : executions(kExecutions, {.weak_memory = weak})) {
    World world(2, options);
    const Memory memory{world.allocate<u32>(0, 256, "writer's"), world.allocate<u32>(reader_rank, 256, "reader's")};
    world.memset(memory.of_writer, 0, 1024);
    world.memset(memory.of_reader, 0, 1024);
    bool surprised = false;
    const auto read = [&] { surprised |= reader(memory); };
    if (reader_rank == 0) {
      world.launch(0,
                   [&] {
                     if (ptx::block_index() == 0) {
                       writer(memory);
                     } else {
                       read();
                     }
                   },
                   {.blocks = 2, .threads = threads});
    } else {
      world.launch(0, [&] { writer(memory); }, {.threads = threads});
      world.launch(reader_rank, read, {.threads = threads});
    }
    world.run();
    count += surprised;
  }
  return count;
}

void wait_for(const u32* flag) {
  while (ptx::load_acquire_sys(flag) == 0) ptx::spin();
}
bool flag_without_data(const Memory& m) {
  wait_for(m.of_reader);
  return ptx::load_weak(m.of_reader + 32) != 42;
}

TEST(WeakMemory, FlagIsSeenBeforeItsDataWithoutAFence) {
  const auto writer = [](const Memory& m) {
    ptx::store_weak(m.of_reader + 32, 42u);
    ptx::store_relaxed_sys(m.of_reader, 1u);
  };
  EXPECT_GT(surprises(1, 1, writer, flag_without_data), 20u);
  EXPECT_GT(surprises(0, 1, writer, flag_without_data), 20u);
  EXPECT_EQ(surprises(1, 1, writer, flag_without_data, /*weak=*/false), 0u);
}
TEST(WeakMemory, FlagIsNotSeenBeforeItsDataWithAFence) {
  const auto fenced = [](const Memory& m) {
    ptx::store_weak(m.of_reader + 32, 42u);
    ptx::fence_sys();
    ptx::store_relaxed_sys(m.of_reader, 1u);
  };
  const auto released = [](const Memory& m) {
    ptx::store_weak(m.of_reader + 32, 42u);
    ptx::store_release_sys(m.of_reader, 1u);
  };
  EXPECT_EQ(surprises(1, 1, fenced, flag_without_data), 0u);
  EXPECT_EQ(surprises(0, 1, fenced, flag_without_data), 0u);
  EXPECT_EQ(surprises(1, 1, released, flag_without_data), 0u);
}
TEST(WeakMemory, DeviceFenceOrdersForTheOwnRankOnly) {
  const auto writer = [](const Memory& m) {
    ptx::store_weak(m.of_reader + 32, 42u);
    ptx::fence_gpu();
    ptx::store_relaxed_sys(m.of_reader, 1u);
  };
  EXPECT_EQ(surprises(0, 1, writer, flag_without_data), 0u);
  EXPECT_GT(surprises(1, 1, writer, flag_without_data), 10u);
}
TEST(WeakMemory, OwnMemoryReadByAPeerNeedsAFenceToo) {
  const auto reader = [](const Memory& m) {
    wait_for(m.of_reader);
    return ptx::load_weak(m.of_writer + 32) != 42;
  };
  const auto writer = [](bool fence) {
    return [fence](const Memory& m) {
      ptx::store_weak(m.of_writer + 32, 42u);
      ptx::block_barrier();
      if (ptx::thread_index() != 0) return;
      if (fence) ptx::fence_sys();
      ptx::store_relaxed_sys(m.of_reader, 1u);
    };
  };
  EXPECT_GT(surprises(1, 2, writer(false), reader), 10u);
  EXPECT_EQ(surprises(1, 2, writer(true), reader), 0u);
}

/// All threads store into the reader's memory, then thread 0 announces it.
std::function<void(const Memory&)> block_writer(bool barrier, bool fence) {
  return [=](const Memory& m) {
    ptx::store_weak(m.of_reader + 32 + ptx::thread_index(), 42u);
    if (barrier) ptx::block_barrier();
    if (ptx::thread_index() != 0) return;
    if (fence) ptx::fence_sys();
    ptx::store_relaxed_sys(m.of_reader, 1u);
  };
}
bool flag_without_all_data(const Memory& m) {
  wait_for(m.of_reader);
  return ptx::load_weak(m.of_reader + 32 + ptx::thread_index()) != 42;
}
TEST(WeakMemory, OneThreadsFenceCoversWhatItsBlockStoredBeforeABarrier) {
  EXPECT_EQ(surprises(1, 32, block_writer(true, true), flag_without_all_data), 0u);
  EXPECT_GT(surprises(1, 32, block_writer(true, false), flag_without_all_data), 20u);
  EXPECT_GT(surprises(1, 32, block_writer(false, true), flag_without_all_data), 20u);
}
TEST(WeakMemory, ClusterBarrierOrdersAsABlockBarrierDoes) {
  u32 early = 0;
  for (const bool fence : {true, false}) {
    for (const Options& options : executions(kExecutions)) {
      World world(2, options);
      u32* data = world.allocate<u32>(1, 64, "data");
      u32* flag = world.allocate<u32>(1, 1, "flag");
      world.memset(data, 0, 256);
      world.memset(flag, 0, 4);
      world.launch(0,
                   [&] {
                     ptx::store_weak(data + ptx::block_index() * 8 + ptx::thread_index(), 42u);
                     ptx::cluster_barrier();
                     EXPECT_EQ(ptx::load_weak(data + (1 - ptx::block_index()) * 8 + ptx::thread_index()), 42u);
                     if (ptx::block_index() == 1 && ptx::thread_index() == 3) {
                       if (fence) ptx::fence_sys();
                       ptx::store_relaxed_sys(flag, 1u);
                     }
                   },
                   {.blocks = 2, .threads = 8, .cluster = 2});
      world.launch(1,
                   [&] {
                     wait_for(flag);
                     const bool surprised = ptx::load_weak(data + ptx::thread_index() % 16) != 42;
                     EXPECT_FALSE(fence && surprised) << describe(options);
                     early += surprised;
                   },
                   {.threads = 16});
      world.run();
    }
  }
  EXPECT_GT(early, 20u);
}

TEST(WeakMemory, BlockBarrierShowsStoresToTheBlock) {
  for (const Options& options : executions(100)) {
    World world(2, options);
    u32* here = world.allocate<u32>(0, 64, "here");
    u32* there = world.allocate<u32>(1, 64, "there");
    world.launch(0,
                 [&] {
                   const u32 t = ptx::thread_index();
                   ptx::store_weak(here + t, t);
                   ptx::store_relaxed_sys(there + t, t);
                   ptx::block_barrier();
                   EXPECT_EQ(ptx::load_weak(here + (t ^ 33)), t ^ 33);
                   EXPECT_EQ(ptx::load_weak(there + (t ^ 33)), t ^ 33);
                 },
                 {.threads = 64});
    world.run();
  }
}
TEST(WeakMemory, ThreadSeesItsOwnStoresAndTheirBytes) {
  for (const Options& options : executions(50)) {
    World world(2, options);
    auto* words = world.allocate<u32>(1, 4, "words");
    world.launch(0,
                 [&] {
                   ptx::store_weak(reinterpret_cast<Vec16*>(words), Vec16{{1, 2, 3, 4}});
                   ptx::store_weak(reinterpret_cast<u8*>(words) + 5, u8{0xab});
                   ptx::store_weak(reinterpret_cast<device::u16*>(words) + 5, device::u16{0xcdef});
                   EXPECT_EQ(ptx::load_weak(words), 1u);
                   EXPECT_EQ(ptx::load_weak(words + 1), 0xab02u);
                   EXPECT_EQ(ptx::load_weak(words + 2), 0xcdef0003u);
                   EXPECT_EQ(ptx::load_weak(reinterpret_cast<const u64*>(words) + 1), 0x4cdef0003ull);
                 },
                 {.threads = 1});
    world.run();
    EXPECT_EQ(world.read(words, 4), (std::vector<u32>{1, 0xab02, 0xcdef0003, 4}));
  }
}

TEST(WeakMemory, StoresToOneAddressKeepTheirOrder) {
  const auto writer = [](const Memory& m) {
    ptx::store_weak(m.of_reader, 1u);
    ptx::block_barrier();
    ptx::store_relaxed_sys(m.of_reader, 2u);
    ptx::fence_gpu();
    ptx::store_weak(m.of_reader, 3u);
    ptx::store_relaxed_sys(m.of_reader, 4u);
  };
  const auto reader = [](const Memory& m) {
    u32 last = 0;
    while (last != 4) {
      const u32 now = ptx::load_relaxed_sys(m.of_reader);
      if (now < last) return true;
      last = now;
      ptx::spin();
    }
    return false;
  };
  EXPECT_EQ(surprises(1, 1, writer, reader), 0u);
  EXPECT_EQ(surprises(0, 1, writer, reader), 0u);
}
TEST(WeakMemory, VectorIsSeenWordByWord) {
  u32 torn_after[4] = {};
  const auto writer = [](const Memory& m) {
    ptx::store_relaxed_sys(reinterpret_cast<Vec16*>(m.of_reader), Vec16{{1, 1, 1, 1}});
  };
  const auto reader = [&](const Memory& m) {
    u32 seen = 0;
    bool torn = false;
    while (seen != 4) {
      const Vec16 v = ptx::load_relaxed_sys(reinterpret_cast<const Vec16*>(m.of_reader));
      seen = v.word[0] + v.word[1] + v.word[2] + v.word[3];
      for (u32 i = 0; i < 4; ++i) torn_after[i] += seen == 1 && v.word[i] == 1;
      torn |= seen != 0 && seen != 4;
      ptx::spin();
    }
    return torn;
  };
  EXPECT_GT(surprises(1, 1, writer, reader), 50u);
  for (const u32 count : torn_after) EXPECT_GT(count, 5u) << "each word should be the first in some execution";
}
TEST(WeakMemory, WeakStoreNeedNotBeSeenBeforeTheKernelEnds) {
  u32 deadlocks = 0;
  for (const Options& options : executions(40)) {
    World world(2, options);
    u32* flag = world.allocate<u32>(1, 2, "flags");
    world.memset(flag, 0, 8);
    world.launch(0,
                 [&] {
                   ptx::store_weak(flag, 1u);
                   while (ptx::load_relaxed_sys(flag + 1) == 0) ptx::spin();
                 },
                 {.threads = 1});
    world.launch(1,
                 [&] {
                   wait_for(flag);
                   ptx::store_relaxed_sys(flag + 1, 1u);
                 },
                 {.threads = 1});
    try {
      world.run();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kDeadlock);
      ++deadlocks;
    }
  }
  EXPECT_GT(deadlocks, 5u);
  EXPECT_LT(deadlocks, 35u);
}
TEST(WeakMemory, CompletionBringsWeakAndRelaxedStoresOfOneVectorToMemory) {
  for (const Options& options : executions(64)) {
    World world(1, options);
    u32* words = world.allocate<u32>(0, 4, "words");
    world.memset(words, 0, 16);
    for (u32 round = 1; round <= 2; ++round) {
      world.launch(0,
                   [=] {
                     ptx::store_weak(words, round);
                     ptx::store_relaxed_sys(words + 1, round);
                   },
                   {.threads = 1});
    }
    world.run();
    EXPECT_EQ(world.read(words, 2), (std::vector<u32>{2, 2}));
  }
}

TEST(WeakMemory, CompletionBringsEverythingToMemory) {
  for (const Options& options : executions(50)) {
    World world(2, options);
    u32* out = world.allocate<u32>(1, 4 * 64 * 100, "out");
    world.launch(0,
                 [&] {
                   for (u32 i = 0; i < 100; ++i)
                     ptx::store_weak(out + (ptx::block_index() * 64 + ptx::thread_index()) * 100 + i, i);
                   if (ptx::thread_index() % 3 == 0) ptx::fence_gpu();
                 },
                 {.blocks = 4, .threads = 64, .cluster = 2});
    world.run();
    const auto result = world.read(out, 4 * 64 * 100);
    for (u32 i = 0; i < result.size(); ++i) ASSERT_EQ(result[i], i % 100);
  }
}

/// The last block to count itself reads what all blocks stored.
u32 last_block_surprises(u32 (*count)(u32*, u32)) {
  u32 surprises = 0;
  for (const Options& options : executions(kExecutions)) {
    World world(1, options);
    u32* data = world.allocate<u32>(0, 4, "data");
    u32* counter = world.allocate<u32>(0, 1, "counter");
    world.memset(data, 0, 16);
    world.memset(counter, 0, 4);
    bool surprised = false;
    world.launch(0,
                 [&] {
                   if (ptx::thread_index() == 1) ptx::store_weak(data + ptx::block_index(), 42u);
                   ptx::block_barrier();
                   if (ptx::thread_index() != 0 || count(counter, 1) != 3) return;
                   for (u32 i = 0; i < 4; ++i) surprised |= ptx::load_weak(data + i) != 42;
                 },
                 {.blocks = 4, .threads = 2});
    world.run();
    surprises += surprised;
    EXPECT_EQ(world.read(counter, 1)[0], 4u);
  }
  return surprises;
}
TEST(WeakMemory, ReleasingAtomicOrdersForTheRankAndARelaxedOneDoesNot) {
  EXPECT_EQ(last_block_surprises(&ptx::fetch_add_acq_rel_gpu), 0u);
  EXPECT_GT(last_block_surprises(&ptx::fetch_add_relaxed_gpu), 20u);
}
// ---- the reader's side ----------------------------------------------------------------------------------------------

void write_and_release(const Memory& m) {
  ptx::store_weak(m.of_reader + 32, 42u);
  ptx::store_release_sys(m.of_reader, 1u);
}
void relaxed_wait_for(const u32* flag) {
  while (ptx::load_relaxed_sys(flag) == 0) ptx::spin();
}
TEST(StaleLoad, WeakLoadBehindARelaxedFlagNeedsAFence) {
  const auto reader = [](bool fence) {
    return [fence](const Memory& m) {
      relaxed_wait_for(m.of_reader);
      if (fence) ptx::fence_sys();
      return ptx::load_weak(m.of_reader + 32) != 42;
    };
  };
  EXPECT_GT(surprises(1, 1, write_and_release, reader(false)), 20u);
  EXPECT_GT(surprises(0, 1, write_and_release, reader(false)), 20u);
  EXPECT_EQ(surprises(1, 1, write_and_release, reader(true)), 0u);
  EXPECT_EQ(surprises(1, 1, write_and_release, reader(false), /*weak=*/false), 0u);
}
TEST(StaleLoad, AcquireAtDeviceScopeIsEnoughForTheOwnRankOnly) {
  const auto reader = [](const Memory& m) {
    while (ptx::load_acquire_gpu(m.of_reader) == 0) ptx::spin();
    return ptx::load_weak(m.of_reader + 32) != 42;
  };
  EXPECT_EQ(surprises(0, 1, write_and_release, reader), 0u);
  EXPECT_GT(surprises(1, 1, write_and_release, reader), 20u);
}
TEST(StaleLoad, BarrierHandsOnWhatOneThreadHasAcquired) {
  const auto reader = [](bool acquire) {
    return [acquire](const Memory& m) {
      if (ptx::thread_index() == 0) {
        if (acquire) {
          wait_for(m.of_reader);
        } else {
          relaxed_wait_for(m.of_reader);
        }
      }
      ptx::block_barrier();
      return ptx::load_weak(m.of_reader + 32) != 42;
    };
  };
  EXPECT_EQ(surprises(1, 32, write_and_release, reader(true)), 0u);
  EXPECT_GT(surprises(1, 32, write_and_release, reader(false)), 20u);
}
TEST(StaleLoad, RelaxedLoadsAreUpToDate) {
  const auto reader = [](const Memory& m) {
    relaxed_wait_for(m.of_reader);
    return ptx::load_relaxed_sys(m.of_reader + 32) != 42;
  };
  EXPECT_EQ(surprises(1, 1, write_and_release, reader), 0u);
}
TEST(StaleLoad, BlockThatAcquiresFromAPeerHandsItOnAtDeviceScope) {
  for (const Options& options : executions(kExecutions)) {
    World world(2, options);
    u32* data = world.allocate<u32>(1, 1, "data");
    u32* flag = world.allocate<u32>(1, 1, "flag");
    u32* ready = world.allocate<u32>(1, 1, "ready");
    for (u32* word : {data, flag, ready}) world.memset(word, 0, 4);
    world.launch(0,
                 [&] {
                   ptx::store_weak(data, 42u);
                   ptx::store_release_sys(flag, 1u);
                 },
                 {.threads = 1});
    world.launch(1,
                 [&] {
                   if (ptx::block_index() == 0) {
                     wait_for(flag);
                     ptx::add_release_gpu(ready, 1);
                   } else {
                     while (ptx::load_acquire_gpu(ready) == 0) ptx::spin();
                     EXPECT_EQ(ptx::load_weak(data), 42u) << describe(options);
                   }
                 },
                 {.blocks = 3, .threads = 1});
    world.run();
  }
}
TEST(WeakMemory, CompareAndSwapIsWonOnce) {
  for (const Options& options : executions(50)) {
    World world(4, options);
    u32* lock = world.allocate_host<u32>(1, "lock");
    u32 winners = 0;
    for (u32 rank = 0; rank < 4; ++rank) {
      world.launch(rank, [&, rank] { winners += ptx::compare_and_swap_sys(lock, 0, rank + 1) == 0; },
                   {.blocks = 2, .threads = 32});
    }
    world.run();
    EXPECT_EQ(winners, 1u);
    EXPECT_NE(*lock, 0u);
  }
}

}  // namespace
}  // namespace commfuse::sim
