// Every check of the simulator is shown to fire, and to name the culprit.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "sim/ptx.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {
namespace {

namespace ptx = device::ptx;
using device::Vec16;

/// What run() throws for `kernel`, on each of a few executions.
void expect_failure(FailureKind kind, const std::string& words, const LaunchShape& shape,
                    const std::function<void()>& kernel) {
  for (const Options& options : executions(20)) {
    World world(2, options);
    world.launch(1, kernel, shape);
    try {
      world.run();
      ADD_FAILURE() << "no failure with " << describe(options);
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), kind) << failure.what();
      EXPECT_NE(std::string(failure.what()).find(words), std::string::npos) << failure.what();
      EXPECT_NE(std::string(failure.what()).find(describe(options)), std::string::npos) << failure.what();
    }
  }
}

/// As above, with 64 bytes of initialised memory of rank 1 named 'buffer'.
void expect_memory_failure(FailureKind kind, const std::string& words, const std::function<void(u32*)>& access) {
  for (const Options& options : executions(8)) {
    World world(2, options);
    u32* buffer = world.allocate<u32>(1, 16, "buffer");
    world.memset(buffer, 0, 64);
    world.launch(1,
                 [&] {
                   if (ptx::block_index() == 1 && ptx::thread_index() == 5) access(buffer);
                 },
                 {.blocks = 2});
    try {
      world.run();
      ADD_FAILURE() << "no failure with " << describe(options);
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), kind) << failure.what();
      const std::string message = failure.what();
      EXPECT_NE(message.find("rank 1, launch 0 'kernel', block 1, thread 5"), std::string::npos) << message;
      EXPECT_NE(message.find(words), std::string::npos) << message;
      EXPECT_NE(message.find(describe(options)), std::string::npos) << message;
    }
  }
}

TEST(Fault, LoadBehindTheEndOfAnAllocation) {
  expect_memory_failure(FailureKind::kOutOfBounds, "0 bytes behind the end of 'buffer' (64 bytes) of rank 1",
                        [](u32* buffer) { (void)ptx::load_weak(buffer + 16); });
}
TEST(Fault, StoreBehindTheEndOfAnAllocation) {
  expect_memory_failure(FailureKind::kOutOfBounds, "store of 16 bytes",
                        [](u32* buffer) { ptx::store_weak(reinterpret_cast<Vec16*>(buffer) + 4, Vec16{}); });
}
TEST(Fault, StoreBeforeTheStartOfAnAllocation) {
  expect_memory_failure(FailureKind::kOutOfBounds, "4 bytes before 'buffer'",
                        [](u32* buffer) { ptx::store_relaxed_sys(buffer - 1, 1u); });
}
TEST(Fault, AtomicOnANullPointer) {
  expect_memory_failure(FailureKind::kOutOfBounds, "outside simulated memory",
                        [](u32*) { ptx::add_relaxed_gpu(nullptr, 1); });
}
TEST(Fault, AccessToTheLastBytesOfAnOddAllocation) {
  World world(1);
  auto* bytes = world.allocate<u8>(0, 5, "bytes");
  world.launch(0, [&] { ptx::store_weak(bytes + 4, u8{1}); }, {.threads = 1});
  world.run();
  EXPECT_EQ(world.read(bytes + 4, 1)[0], 1);
  world.launch(0, [&] { ptx::store_weak(bytes + 5, u8{1}); }, {.threads = 1});
  EXPECT_THROW(world.run(), Failure);
}
TEST(Fault, MisalignedVector) {
  expect_memory_failure(FailureKind::kMisaligned, "byte 4 of 64 of 'buffer' of rank 1",
                        [](u32* buffer) { (void)ptx::load_weak(reinterpret_cast<const Vec16*>(buffer + 1)); });
}
TEST(Fault, MisalignedPairOfWords) {
  expect_memory_failure(FailureKind::kMisaligned, "byte 12 of 64 of 'buffer'",
                        [](u32* buffer) { ptx::store_weak(reinterpret_cast<u64*>(buffer + 3), u64{1}); });
}

TEST(Fault, ReadOfBytesThatNobodyWrote) {
  for (const bool weak : {true, false}) {
    World world(1, {.weak_memory = weak});
    u32* buffer = world.allocate<u32>(0, 8, "fresh");
    world.memset(buffer, 0, 12);
    world.launch(0, [&] { (void)ptx::load_weak(reinterpret_cast<const Vec16*>(buffer)); }, {.threads = 1});
    try {
      world.run();
      ADD_FAILURE();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kUninitialised);
      EXPECT_NE(std::string(failure.what()).find("'fresh'"), std::string::npos) << failure.what();
    }
  }
}
TEST(Fault, WrittenBytesMayBeReadAndTheirNeighboursMayNot) {
  const auto read_back = [](u32 byte) {
    World world(1);
    auto* bytes = world.allocate<u8>(0, 16, "bytes");
    world.launch(0,
                 [&] {
                   ptx::store_weak(reinterpret_cast<u32*>(bytes), 0x04030201u);
                   EXPECT_EQ(ptx::load_weak(reinterpret_cast<const u32*>(bytes)), 0x04030201u);
                   ptx::store_weak(bytes + 5, u8{7});
                 },
                 {.threads = 1});
    world.run();
    return world.read(bytes + byte, 1)[0];
  };
  EXPECT_EQ(read_back(2), 3);
  EXPECT_EQ(read_back(5), 7);
  EXPECT_THROW(read_back(4), Failure);
  EXPECT_THROW(read_back(6), Failure);
}
TEST(Fault, AtomicOnBytesThatNobodyWrote) {
  World world(1);
  u32* counter = world.allocate<u32>(0, 1, "counter");
  world.launch(0, [&] { ptx::add_release_gpu(counter, 1); }, {.threads = 1});
  EXPECT_THROW(world.run(), Failure);
}

TEST(Fault, UseAfterDeallocation) {
  World world(2);
  u32* buffer = world.allocate<u32>(1, 16, "gone");
  world.memset(buffer, 0, 64);
  world.deallocate(buffer);
  EXPECT_THROW(world.deallocate(buffer), Failure);
  world.launch(0, [&] { (void)ptx::load_weak(buffer + 3); }, {.threads = 1});
  try {
    world.run();
    ADD_FAILURE();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.kind(), FailureKind::kUseAfterFree);
    EXPECT_NE(std::string(failure.what()).find("deallocated 'gone' of rank 1"), std::string::npos) << failure.what();
  }
}
TEST(Fault, StoreThatReachesMemoryAfterItsDeallocation) {
  u32 failures = 0;
  for (const Options& options : executions(40)) {
    World world(1, options);
    u32* buffer = world.allocate<u32>(0, 1, "buffer");
    world.at(10'000, [&] { world.deallocate(buffer); });
    world.launch(0,
                 [&] {
                   ptx::store_weak(buffer, 1u);
                   while (ptx::time_ns() < 20'000) ptx::spin();
                 },
                 {.threads = 1});
    try {
      world.run();
    } catch (const Failure& failure) {
      failures += failure.kind() == FailureKind::kUseAfterFree;
    }
  }
  EXPECT_GT(failures, 5u);
}

TEST(Fault, ShuffleWithoutALaneThatHasExited) {
  expect_failure(FailureKind::kMissingLane, "lanes", {.threads = 64}, [] {
    if (ptx::thread_index() == 40) return;
    (void)ptx::shuffle_xor(1u, 16);
  });
}
TEST(Fault, ShuffleInAWarpThatIsNotFull) {
  expect_failure(FailureKind::kMissingLane, "0xffff0000", {.threads = 48}, [] { (void)ptx::shuffle_from(1u, 0); });
}
TEST(Fault, ShuffleWithoutALaneThatIsAtABarrier) {
  expect_failure(FailureKind::kMissingLane, "warp 1: the lanes 0x00000100 do not take part", {.threads = 64}, [] {
    if (ptx::thread_index() != 40) (void)ptx::shuffle_xor(1.0f, 16);
    ptx::block_barrier();
  });
}
TEST(Fault, LanesInTwoKindsOfWarpOperation) {
  expect_failure(FailureKind::kMissingLane, "warp_barrier", {.threads = 32}, [] {
    if (ptx::thread_index() < 16) {
      ptx::warp_barrier();
    } else {
      (void)ptx::shuffle_xor(1u, 1);
    }
  });
}

TEST(Fault, BlockBarrierThatNotAllThreadsReach) {
  expect_failure(FailureKind::kBarrier, "32 threads are at a block barrier; 32 threads are at a cluster barrier",
                 {.threads = 64}, [] {
                   if (ptx::thread_index() < 32) {
                     ptx::block_barrier();
                   } else {
                     ptx::cluster_barrier();
                   }
                 });
}
TEST(Fault, ClusterBarrierThatNotAllBlocksReach) {
  expect_failure(FailureKind::kBarrier, "at a cluster barrier", {.blocks = 4, .threads = 32, .cluster = 4}, [] {
    if (ptx::cluster_block_index() == 3 && ptx::thread_index() == 0) ptx::block_barrier();
    ptx::cluster_barrier();
  });
}
TEST(Fault, ClusterBarrierWaitWithoutArrival) {
  expect_failure(FailureKind::kBarrier, "cluster_wait without cluster_arrive", {.threads = 32},
                 [] { ptx::cluster_wait(); });
}
TEST(Fault, ClusterBarrierArrivalTwice) {
  expect_failure(FailureKind::kBarrier, "cluster_arrive twice", {.blocks = 2, .threads = 1, .cluster = 2}, [] {
    ptx::cluster_arrive();
    ptx::cluster_arrive();
  });
}

struct Numbers {
  float value[64];
};
TEST(Fault, SharedMemoryOfABlockThatMayNotHaveStarted) {
  u32 failures = 0;
  for (const Options& options : executions(40)) {
    World world(1, options);
    world.launch(0,
                 [] {
                   auto& shared = ptx::shared_memory<Numbers>();
                   ptx::store_shared_of_block(&shared.value[3], 1 - ptx::cluster_block_index(), 1.0f);
                   ptx::cluster_barrier();
                 },
                 {.blocks = 2, .threads = 32, .cluster = 2});
    try {
      world.run();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kSharedMemory);
      ++failures;
    }
  }
  EXPECT_GT(failures, 20u);
}
TEST(Fault, SharedMemoryOfABlockThatHasExited) {
  u32 failures = 0;
  for (const Options& options : executions(40)) {
    World world(1, options);
    world.launch(0,
                 [] {
                   auto& shared = ptx::shared_memory<Numbers>();
                   ptx::cluster_barrier();
                   if (ptx::cluster_block_index() == 0) return;
                   ptx::store_shared_of_block(&shared.value[3], 0, 1.0f);
                 },
                 {.blocks = 2, .threads = 1, .cluster = 2});
    try {
      world.run();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kSharedMemory);
      EXPECT_NE(std::string(failure.what()).find("has exited"), std::string::npos) << failure.what();
      ++failures;
    }
  }
  EXPECT_GT(failures, 5u);
}
TEST(Fault, SharedMemoryBehindItsEndOrOfABlockOutsideTheCluster) {
  expect_failure(FailureKind::kSharedMemory, "outside this block's shared memory", {.threads = 1},
                 [] { ptx::store_shared_of_block(ptx::shared_memory<Numbers>().value + 64, 0, 1.0f); });
  expect_failure(FailureKind::kSharedMemory, "block 1 of a cluster of 1", {.threads = 1},
                 [] { ptx::store_shared_of_block(ptx::shared_memory<Numbers>().value, 1, 1.0f); });
}
TEST(Fault, SharedMemoryOfTwoTypes) {
  expect_failure(FailureKind::kSharedMemory, "two types", {.threads = 1}, [] {
    (void)ptx::shared_memory<Numbers>();
    (void)ptx::shared_memory<u32>();
  });
}

TEST(Fault, DeadlockNamesWhatTheThreadsWaitFor) {
  for (const Options& options : executions(8)) {
    World world(2, options);
    u32* flag = world.allocate<u32>(1, 4, "flag");
    world.memset(flag, 0, 16);
    world.launch(0,
                 [&] {
                   while (ptx::load_acquire_sys(flag + 2) == 0) ptx::spin();
                 },
                 {.threads = 64, .name = "waiter"});
    try {
      world.run();
      ADD_FAILURE();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kDeadlock);
      const std::string message = failure.what();
      EXPECT_NE(message.find("rank 0, launch 0 'waiter'"), std::string::npos) << message;
      EXPECT_NE(message.find("64 threads spin"), std::string::npos) << message;
      EXPECT_NE(message.find("byte 8 of 16 of 'flag' of rank 1"), std::string::npos) << message;
      EXPECT_NE(message.find(describe(options)), std::string::npos) << message;
    }
  }
}
TEST(Fault, PollingForEverWithoutSpinHitsTheStepLimit) {
  World world(1, {.max_steps = 100'000});
  u32* flag = world.allocate<u32>(0, 1, "flag");
  world.memset(flag, 0, 4);
  world.launch(0,
               [&] {
                 while (ptx::load_relaxed_sys(flag) == 0) {
                 }
               },
               {.threads = 2});
  try {
    world.run();
    ADD_FAILURE();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.kind(), FailureKind::kStepLimit);
  }
}

TEST(Fault, ThreadsAreUnwoundAndAFailedWorldStaysFailed) {
  struct Guard {
    explicit Guard(int& count) : alive(count) { ++alive; }
    ~Guard() { --alive; }
    int& alive;
  };
  int alive = 0;
  int most = 0;
  World world(1);
  world.launch(0,
               [&] {
                 const Guard guard(alive);
                 most = std::max(most, alive);
                 if (ptx::thread_index() == 63) (void)ptx::load_weak(static_cast<const u32*>(nullptr));
                 ptx::block_barrier();
               },
               {.threads = 64});
  EXPECT_THROW(world.run(), Failure);
  EXPECT_EQ(alive, 0);
  EXPECT_GT(most, 1);
  EXPECT_THROW(world.run(), Failure);
}
TEST(Fault, AKernelsOwnExceptionReachesTheCaller) {
  World world(1);
  world.launch(0,
               [] {
                 if (ptx::thread_index() == 3) throw std::out_of_range("own");
               },
               {.threads = 32});
  EXPECT_THROW(world.run(), std::out_of_range);
}

TEST(Fault, WrongUse) {
  World world(2, {.bytes_per_rank = 1 << 20});
  EXPECT_THROW((void)ptx::thread_index(), Failure);
  EXPECT_THROW((void)world.allocate<u8>(2, 1, "none"), Failure);
  EXPECT_THROW((void)world.allocate<u8>(0, 2 << 20, "large"), Failure);
  EXPECT_THROW(world.launch(2, [] {}, {}), Failure);
  EXPECT_THROW(world.launch(0, [] {}, {.blocks = 3, .cluster = 2}), Failure);
  EXPECT_THROW(world.launch(0, [] {}, {.threads = 1025}), Failure);
  EXPECT_THROW(World(0), Failure);
  u8* byte = world.allocate<u8>(0, 1, "byte");
  EXPECT_THROW(world.memset(byte, 0, 2), Failure);
}

}  // namespace
}  // namespace commfuse::sim
