#include "runtime/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "jit_support.hpp"

namespace commfuse::runtime {
namespace {

void write(const std::string& file, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  std::ofstream(file) << text;
}

TEST(Parallel, RunsEveryTaskOnce) {
  for (const int jobs : {1, 2, 7}) {
    std::vector<std::atomic<int>> ran(100);
    for_each_parallel(ran.size(), jobs, [&](std::size_t i) { ++ran[i]; });
    for (const auto& times : ran) EXPECT_EQ(times, 1);
  }
  for_each_parallel(0, 4, [](std::size_t) { ADD_FAILURE(); });
}

TEST(Parallel, RunsTasksAtTheSameTime) {
  // Each of two tasks waits for the other: one after the other, they would never end.
  std::atomic<int> arrived{0};
  for_each_parallel(2, 2, [&](std::size_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(Parallel, ChoosesNoMoreJobsThanAskedForOrThanThereIsWork) {
  EXPECT_EQ(choose_jobs(3, 100), 3);
  EXPECT_EQ(choose_jobs(8, 2), 2);
  EXPECT_EQ(choose_jobs(8, 0), 1);
  EXPECT_GE(choose_jobs(0, 100), 1);
  EXPECT_LE(choose_jobs(0, 100), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(Parallel, FindsTheTightestMemoryLimitOfItsControlGroups) {
  const test::TemporaryFolder root;
  write(root / "proc/self/cgroup", "0::/outer/inner\n");
  write(root / "sys/fs/cgroup/outer/memory.max", "1000000\n");
  write(root / "sys/fs/cgroup/outer/memory.current", "400000\n");
  write(root / "sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(cgroup_memory_left(root.path()), 600000u);
  write(root / "sys/fs/cgroup/outer/inner/memory.max", "500000\n");
  write(root / "sys/fs/cgroup/outer/inner/memory.current", "450000\n");
  EXPECT_EQ(cgroup_memory_left(root.path()), 50000u);
  write(root / "sys/fs/cgroup/outer/inner/memory.current", "500001\n");
  EXPECT_EQ(cgroup_memory_left(root.path()), 0u);
}

TEST(Parallel, SeesTheLimitOfAContainerWhosePathIsTheHosts) {
  const test::TemporaryFolder root;
  write(root / "proc/self/cgroup", "0::/kubepods/pod12/container34\n");
  write(root / "sys/fs/cgroup/memory.max", "2147483648\n");
  write(root / "sys/fs/cgroup/memory.current", "147483648\n");
  EXPECT_EQ(cgroup_memory_left(root.path()), 2000000000u);
}

TEST(Parallel, ReadsTheLimitsOfTheFirstVersionOfControlGroups) {
  const test::TemporaryFolder root;
  write(root / "proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n");
  write(root / "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000\n");
  write(root / "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(cgroup_memory_left(root.path()), 200000u);
}

TEST(Parallel, KnowsNoLimitWhereThereIsNone) {
  const test::TemporaryFolder root;
  EXPECT_EQ(cgroup_memory_left(root.path()), std::nullopt);
}

}  // namespace
}  // namespace commfuse::runtime
