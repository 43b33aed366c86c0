#include <gtest/gtest.h>

#include "sim/ptx.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {
namespace {

namespace ptx = device::ptx;

struct FlagParams {
  u32* data;
  u32* flag;
  u32* seen;
  bool fenced;
};

void flag_kernel(const FlagParams& p) {
  if (ptx::block_index() == 0) {
    ptx::store_weak(p.data, 42);
    if (p.fenced) ptx::fence_sys();
    ptx::store_relaxed_sys(p.flag, 1u);
  } else {
    while (ptx::load_acquire_sys(p.flag) == 0) ptx::spin();
    ptx::store_weak(p.seen, ptx::load_weak(p.data));
  }
}

u32 early_flags(bool fenced) {
  u32 early = 0;
  for (const Options& options : executions(200)) {
    World world(1, options);
    FlagParams p{world.allocate<u32>(0, 1, "data"), world.allocate<u32>(0, 1, "flag"),
                 world.allocate<u32>(0, 1, "seen"), fenced};
    world.memset(p.data, 0, 4);
    world.memset(p.flag, 0, 4);
    world.launch(0, flag_kernel, p, {.blocks = 2, .threads = 1});
    world.run();
    early += world.read(p.seen, 1)[0] != 42;
  }
  return early;
}

TEST(WeakMemory, ShowsAFlagBeforeItsDataWhereNoFenceLiesBetween) { EXPECT_GT(early_flags(false), 10u); }
TEST(WeakMemory, NeverShowsAFlagBeforeItsDataWhereAFenceLiesBetween) { EXPECT_EQ(early_flags(true), 0u); }

}  // namespace
}  // namespace commfuse::sim
