// Who runs when: policies, repeatability, barriers, time, size.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "sim/ptx.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {
namespace {

namespace ptx = device::ptx;

/// A busy little protocol; returns everything that its threads saw, in the order in which they saw it.
std::vector<u64> trace_of(const Options& options) {
  std::vector<u64> trace;
  World world(3, options);
  u32* flags[3];
  for (u32 rank = 0; rank < 3; ++rank) {
    flags[rank] = world.allocate<u32>(rank, 64, "flags");
    world.memset(flags[rank], 0, 256);
  }
  for (u32 rank = 0; rank < 3; ++rank) {
    world.launch(rank,
                 [&, rank] {
                   const u32 t = ptx::thread_index();
                   ptx::store_relaxed_sys(flags[(rank + 1) % 3] + t, rank + 1);
                   while (true) {
                     const u32 seen = ptx::load_relaxed_sys(flags[rank] + t);
                     trace.push_back(rank << 16 | t << 8 | seen);
                     if (seen != 0) break;
                     ptx::spin();
                   }
                   trace.push_back(ptx::time_ns());
                   ptx::block_barrier();
                 },
                 {.blocks = 1, .threads = 64});
  }
  world.run();
  trace.push_back(world.statistics().steps);
  return trace;
}
TEST(Scheduling, EqualOptionsGiveEqualExecutions) {
  std::set<std::vector<u64>> different;
  for (const Options& options : executions(40)) {
    const auto trace = trace_of(options);
    EXPECT_EQ(trace, trace_of(options)) << describe(options);
    different.insert(trace);
  }
  EXPECT_EQ(different.size(), 40u);
}

/// Ranks in the order in which they finish a kernel without communication.
std::vector<u32> finishing_order(const Options& options) {
  std::vector<u32> order;
  World world(4, options);
  u32* memory = world.allocate<u32>(0, 4 * 32, "memory");
  for (u32 rank = 0; rank < 4; ++rank) {
    world.launch(rank,
                 [&, rank] {
                   for (u32 i = 0; i < 8; ++i) {
                     ptx::store_weak(memory + rank * 32 + ptx::thread_index(), i);
                     ptx::block_barrier();
                   }
                   if (ptx::thread_index() == 0) order.push_back(rank);
                 },
                 {.threads = 32});
  }
  world.run();
  return order;
}
TEST(Scheduling, FavouredRankFinishesFirstAndStarvedRankLast) {
  for (u32 seed = 1; seed <= 20; ++seed) {
    for (u32 rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(finishing_order({.seed = seed, .policy = Policy::kFavourOne, .subject_rank = rank}).front(), rank);
      EXPECT_EQ(finishing_order({.seed = seed, .policy = Policy::kStarveOne, .subject_rank = rank}).back(), rank);
    }
  }
}
TEST(Scheduling, RandomPolicyFinishesInEveryOrder) {
  std::set<std::vector<u32>> orders;
  for (u32 seed = 1; seed <= 400; ++seed) orders.insert(finishing_order({.seed = seed, .policy = Policy::kRandom}));
  EXPECT_GT(orders.size(), 20u);
}
TEST(Scheduling, ThreadsAreSwitchedBetweenTheirMemoryOperations) {
  u32 lost = 0;
  for (const Options& options : executions(100, {.weak_memory = false})) {
    World world(1, options);
    u32* counter = world.allocate<u32>(0, 1, "counter");
    world.memset(counter, 0, 4);
    world.launch(0, [&] { ptx::store_weak(counter, ptx::load_weak(counter) + 1); }, {.threads = 32});
    world.run();
    lost += world.read(counter, 1)[0] != 32;
  }
  EXPECT_GT(lost, 20u);
}

TEST(Scheduling, ShufflesExchangeLanes) {
  World world(1);
  world.launch(0,
               [] {
                 const u32 t = ptx::thread_index();
                 EXPECT_EQ(ptx::shuffle_xor(t, 5), t ^ 5);
                 EXPECT_EQ(ptx::shuffle_from(t, 7), t / 32 * 32 + 7);
                 float sum = static_cast<float>(t % 32);
                 for (u32 mask = 16; mask != 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
                 EXPECT_EQ(sum, 496.0f);
               },
               {.blocks = 2, .threads = 96});
  world.run();
}
TEST(Scheduling, BarriersDoNotWaitForThreadsThatHaveExited) {
  for (const Options& options : executions(20)) {
    World world(1, options);
    u32 passed = 0;
    world.launch(0,
                 [&] {
                   if (ptx::thread_index() < 32) return;
                   ptx::block_barrier();
                   ptx::cluster_barrier();
                   ++passed;
                 },
                 {.blocks = 2, .threads = 64, .cluster = 2});
    world.run();
    EXPECT_EQ(passed, 64u);
  }
}
TEST(Scheduling, SharedMemoryOfAClusterReachesTheOtherBlocks) {
  struct Shared {
    float from[4][32];
  };
  for (const Options& options : executions(20)) {
    World world(1, options);
    world.launch(
        0,
        [] {
          auto& shared = ptx::shared_memory<Shared>();
          const u32 self = ptx::cluster_block_index();
          const u32 t = ptx::thread_index();
          EXPECT_EQ(self, ptx::block_index() % 4);
          ptx::cluster_barrier();
          for (u32 block = 0; block < 4; ++block) {
            ptx::store_shared_of_block(&shared.from[self][t], block, static_cast<float>(ptx::block_index() * 100 + t));
          }
          ptx::cluster_arrive();
          ptx::cluster_wait();
          for (u32 block = 0; block < 4; ++block) {
            EXPECT_EQ(shared.from[block][t], static_cast<float>((ptx::block_index() / 4 * 4 + block) * 100 + t));
          }
        },
        {.blocks = 8, .threads = 32, .cluster = 4});
    world.run();
  }
}
TEST(Scheduling, SharedMemoryStartsAsGarbage) {
  World world(1);
  world.launch(0, [] { EXPECT_EQ(ptx::shared_memory<u32>(), 0xcdcdcdcdu); }, {.blocks = 2, .threads = 1});
  world.run();
}

// ---- time and the host ----------------------------------------------------------------------------------------------

TEST(Time, DeadlineOfAWaitIsReached) {
  for (const Options& options : executions(8)) {
    World world(1, options);
    u32* flag = world.allocate<u32>(0, 1, "flag");
    world.memset(flag, 0, 4);
    bool timed_out = false;
    world.launch(0,
                 [&] {
                   const u64 deadline = ptx::time_ns() + 30'000'000'000ull;
                   for (u32 rounds = 0; ptx::load_relaxed_sys(flag) == 0; ++rounds) {
                     if (rounds % 256 == 255 && ptx::time_ns() > deadline) {
                       timed_out = true;
                       return;
                     }
                     ptx::spin();
                   }
                 },
                 {.threads = 32});
    world.run();
    EXPECT_TRUE(timed_out);
    EXPECT_GE(world.now_ns(), 30'000'000'000ull);
    EXPECT_LT(world.statistics().steps, 1'000'000u);
  }
}
TEST(Time, ThreadThatPollsVeryManyVectorsGoesOn) {
  for (const Options& options : executions(8)) {
    World world(2, options);
    constexpr u32 kWords = 400;
    u32* words = world.allocate<u32>(1, kWords, "words");
    world.memset(words, 0, kWords * 4);
    world.launch(0,
                 [&] {
                   for (u32 i = 0; i < kWords; i += 3) ptx::store_relaxed_sys(words + i, 1u);
                 },
                 {.threads = 1});
    world.launch(1,
                 [&] {
                   for (bool all = false; !all; ptx::spin()) {
                     all = true;
                     for (u32 i = 0; i < kWords; i += 3) all &= ptx::load_relaxed_sys(words + i) != 0;
                   }
                 },
                 {.threads = 4});
    world.run();
    EXPECT_LT(world.now_ns(), 1'000'000u);
  }
}
TEST(Time, HostActsAtItsTimeAndIsSeen) {
  for (const Options& options : executions(8)) {
    World world(2, options);
    u32* abort = world.allocate_host<u32>(1, "abort");
    u64 seen_at = 0;
    world.at(5'000'000, [&] { *abort = 1; });
    world.launch(1,
                 [&] {
                   while (ptx::load_relaxed_sys(abort) == 0) ptx::spin();
                   seen_at = ptx::time_ns();
                 },
                 {.threads = 32});
    world.run();
    EXPECT_GE(seen_at, 4'999'000u);
    EXPECT_LT(seen_at, 6'000'000u);
  }
}
TEST(Time, RegisteredHostMemoryIsReadAndWritten) {
  alignas(16) u32 mailbox[4] = {1, 2, 3, 4};
  World world(2);
  world.register_host(mailbox, sizeof mailbox, "mailbox");
  world.launch(1,
               [&] {
                 ptx::store_relaxed_sys(mailbox + 3, ptx::load_relaxed_sys(mailbox + 1) + 5);
                 EXPECT_EQ(ptx::compare_and_swap_sys(mailbox, 1, 9), 1u);
               },
               {.threads = 1});
  world.run();
  EXPECT_EQ(mailbox[3], 7u);
  EXPECT_EQ(mailbox[0], 9u);
  world.deallocate(mailbox);
  world.launch(1, [&] { (void)ptx::load_weak(mailbox); }, {.threads = 1});
  EXPECT_THROW(world.run(), Failure);
}

// ---- size -----------------------------------------------------------------------------------------------------------

TEST(Scale, SixteenRanksOfManyLargeBlocksFit) {
  constexpr u32 kRanks = 16;
  constexpr u32 kBlocks = 3;
  constexpr u32 kThreads = 1024;
  World world(kRanks, {.seed = 3, .preemption = false});
  u32* slots[kRanks];
  for (u32 rank = 0; rank < kRanks; ++rank) {
    slots[rank] = world.allocate<u32>(rank, kBlocks * kThreads, "slots");
    world.memset(slots[rank], 0, kBlocks * kThreads * 4);
  }
  for (u32 rank = 0; rank < kRanks; ++rank) {
    world.launch(rank,
                 [&, rank] {
                   const u32 i = ptx::block_index() * kThreads + ptx::thread_index();
                   ptx::store_relaxed_sys(slots[(rank + 1) % kRanks] + i, rank + 1);
                   while (ptx::load_relaxed_sys(slots[rank] + i) == 0) ptx::spin();
                   ptx::block_barrier();
                 },
                 {.blocks = kBlocks, .threads = kThreads});
  }
  world.run();
  for (u32 rank = 0; rank < kRanks; ++rank) EXPECT_EQ(world.read(slots[rank], 1)[0], (rank + 15) % kRanks + 1);
}

}  // namespace
}  // namespace commfuse::sim
