// What a process takes that finds every kernel in the cache, and one that compiles: processes of their own, with this
// machine's NVRTC.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "bench/worker.hpp"
#include "bench/workload.hpp"

namespace commfuse::bench {
namespace {

constexpr long kMiB = 1024;  // in KiB

/// What the dynamic loader has opened, as it tells itself.
std::string loaded_files(const std::filesystem::path& folder) {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path());
    all.append(std::istreambuf_iterator<char>(in), {});
  }
  return all;
}

TEST(Memory, AProcessThatFindsEveryKernelStaysSmallAndNeverOpensTheCompiler) {
  const TemporaryFolder cache, traces;
  constexpr int kHiddenSizes = 29;
  fill_cache(cache.path(), deployment_of(kHiddenSizes).kernels());
  // The first start opens the compiler to learn its build, which the cache remembers from then on.
  EXPECT_EQ(run_workers(1, cache.path(), kHiddenSizes, 2)[0].compiled, 0);

  const WorkerReport warm =
      run_workers(1, cache.path(), kHiddenSizes, 2,
                  {{"LD_DEBUG", "files"}, {"LD_DEBUG_OUTPUT", (traces.path() / "trace").string()}})[0];
  EXPECT_GE(warm.hits, 200);
  EXPECT_EQ(warm.compiled, 0);
  EXPECT_EQ(warm.nvrtc_calls, 0);
  EXPECT_FALSE(warm.nvrtc_mapped);
  EXPECT_LT(warm.peak_kib, 40 * kMiB);
  const std::string files = loaded_files(traces.path());
  EXPECT_NE(files.find("libc.so"), std::string::npos) << "the trace is not what this test takes it for";
  EXPECT_EQ(files.find("libnvrtc"), std::string::npos);
  EXPECT_EQ(files.find("libcuda"), std::string::npos);
}

TEST(Memory, AProcessThatCompilesStaysWithinItsBound) {
  const TemporaryFolder cache;
  const WorkerReport cold = run_workers(1, cache.path(), 1, 2)[0];
  EXPECT_GT(cold.compiled, 0);
  EXPECT_EQ(cold.failed, 0);
  EXPECT_TRUE(cold.nvrtc_mapped);
  EXPECT_LT(cold.peak_kib, 400 * kMiB);
}

}  // namespace
}  // namespace commfuse::bench

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--worker") return commfuse::bench::work({argv + 2, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
