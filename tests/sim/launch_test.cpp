// Launches: dependent ones, their parameters, and how many blocks a device holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/ptx.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {
namespace {

namespace ptx = device::ptx;

struct Producer {
  u32* data;
  u32* early;  ///< of the consumer: what it saw before it waited
};
void produce(const Producer& p) {
  ptx::release_dependents();
  for (u32 i = 0; i < 4; ++i) {
    ptx::store_weak(p.data + ptx::block_index() * 32 + ptx::thread_index(), i + 1);
    ptx::block_barrier();
  }
}
void consume(const Producer& p) {
  const u32 i = ptx::block_index() * 32 + ptx::thread_index();
  ptx::store_weak(p.early + i, ptx::load_weak(p.data + i));
  ptx::wait_for_predecessors();
  EXPECT_EQ(ptx::load_weak(p.data + (63 - i)), 4u);
}
u32 early_consumers(bool dependent) {
  u32 early = 0;
  for (const Options& options : executions(100)) {
    World world(1, options);
    const Producer p{world.allocate<u32>(0, 64, "data"), world.allocate<u32>(0, 64, "early")};
    world.memset(p.data, 0, 256);
    world.launch(0, produce, p, {.blocks = 2});
    world.launch(0, consume, p, {.blocks = 2, .dependent = dependent});
    world.run();
    const auto seen = world.read(p.early, 64);
    early += std::any_of(seen.begin(), seen.end(), [](u32 v) { return v != 4; });
  }
  return early;
}
TEST(DependentLaunch, StartsEarlyAndSeesEverythingAfterTheWait) { EXPECT_GT(early_consumers(true), 50u); }
TEST(DependentLaunch, WithoutTheFlagStartsAfterTheEnd) { EXPECT_EQ(early_consumers(false), 0u); }

TEST(DependentLaunch, WaitsUntilEveryBlockHasReleasedItOrExited) {
  for (const Options& options : executions(100)) {
    World world(1, options);
    u32 released = 0;
    world.launch(0,
                 [&] {
                   ptx::block_barrier();
                   if (ptx::thread_index() == 0) ++released;
                   if (ptx::block_index() % 2 == 0 && ptx::thread_index() == 0) ptx::release_dependents();
                   ptx::block_barrier();
                 },
                 {.blocks = 4});
    world.launch(0, [&] { EXPECT_EQ(released, 4u); }, {.blocks = 1, .dependent = true});
    world.run();
  }
}
TEST(DependentLaunch, AfterAKernelThatDidNotWaitIsNotAfterWhatCameBefore) {
  u32 overtaken = 0;
  for (const bool middle_waits : {true, false}) {
    for (const Options& options : executions(100)) {
      World world(1, options);
      u32* data = world.allocate<u32>(0, 1, "data");
      world.memset(data, 0, 4);
      bool surprised = false;
      world.launch(0,
                   [&] {
                     ptx::release_dependents();
                     ptx::block_barrier();
                     ptx::store_weak(data, 1u);
                   },
                   {});
      world.launch(0,
                   [&] {
                     ptx::release_dependents();
                     if (middle_waits) ptx::wait_for_predecessors();
                   },
                   {.dependent = true});
      world.launch(0,
                   [&] {
                     ptx::wait_for_predecessors();
                     surprised |= ptx::load_weak(data) != 1;
                   },
                   {.dependent = true});
      world.run();
      EXPECT_FALSE(middle_waits && surprised) << describe(options);
      overtaken += surprised;
    }
  }
  EXPECT_GT(overtaken, 10u);
}
TEST(Launch, CopiesItsParameters) {
  World world(1);
  u32* out = world.allocate<u32>(0, 2, "out");
  struct Params {
    u32* out;
    u32 value;
  };
  const auto kernel = +[](const Params& p) { ptx::store_weak(p.out, p.value); };
  Params params{out, 1};
  world.launch(0, kernel, params, {.threads = 1});
  params = {out + 1, 2};
  world.launch(0, kernel, params, {.threads = 1});
  world.run();
  EXPECT_EQ(world.read(out, 2), (std::vector<u32>{1, 2}));
}

// ---- residency ------------------------------------------------------------------------------------------------------

/// Every block waits for all blocks of its grid.
void launch_grid_barrier(World& world, u32 rank, u32 blocks) {
  u32* counter = world.allocate<u32>(rank, 1, "counter");
  world.memset(counter, 0, 4);
  world.launch(rank,
               [=] {
                 if (ptx::thread_index() == 0) {
                   ptx::add_release_gpu(counter, 1);
                   while (ptx::load_acquire_gpu(counter) != blocks) ptx::spin();
                 }
                 ptx::block_barrier();
               },
               {.blocks = blocks});
}
TEST(Residency, GridThatIsTooLargeToBeCoResidentDeadlocks) {
  for (const Options& options : executions(12, {.resident_blocks = 4})) {
    World fits(2, options);
    launch_grid_barrier(fits, 0, 4);
    launch_grid_barrier(fits, 1, 4);
    fits.run();

    World too_large(2, options);
    launch_grid_barrier(too_large, 1, 5);
    try {
      too_large.run();
      ADD_FAILURE();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kDeadlock);
      EXPECT_NE(std::string(failure.what()).find("blocks 4-4 are not resident (the device holds 4 blocks at most)"),
                std::string::npos)
          << failure.what();
    }
  }
}
TEST(Residency, LargeGridOfIndependentBlocksRuns) {
  u32 blocks = 0;
  World world(1, {.resident_blocks = 4});
  world.launch(0, [&] { blocks += ptx::thread_index() == 0; }, {.blocks = 100, .cluster = 2});
  world.run();
  EXPECT_EQ(blocks, 100u);
}
TEST(Residency, RanksOfOneDeviceShareItsBlocks) {
  u32 deadlocks = 0;
  for (const Options& options : executions(40, {.resident_blocks = 4, .shared_device = true})) {
    World fits(2, options);
    launch_grid_barrier(fits, 0, 2);
    launch_grid_barrier(fits, 1, 2);
    fits.run();

    World tight(2, options);
    launch_grid_barrier(tight, 0, 3);
    launch_grid_barrier(tight, 1, 3);
    try {
      tight.run();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kDeadlock);
      ++deadlocks;
    }
  }
  EXPECT_GT(deadlocks, 0u);
  EXPECT_LT(deadlocks, 40u);
}
TEST(Residency, ClusterLargerThanTheDeviceNeverStarts) {
  World world(1, {.resident_blocks = 2});
  world.launch(0, [] {}, {.blocks = 4, .cluster = 4});
  EXPECT_THROW(world.run(), Failure);
}

}  // namespace
}  // namespace commfuse::sim
