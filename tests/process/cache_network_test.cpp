// A cache on a file system of a network, and locks that do not work. network_shim.cpp is linked into this program.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "cache/filesystem.hpp"
#include "cache/locks.hpp"
#include "cache/obtain.hpp"
#include "process/cache_process.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::options_for;
using testing::Sample;
using testing::TemporaryDirectory;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class CacheOnANetwork : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"cache", "run"}) ASSERT_TRUE(fs::create_directory(dir_ / name));
    ASSERT_EQ(::chmod((dir_ / "cache").c_str(), 02770), 0);  // where locks would lie beside the cache
    on_network({"cache"});
  }
  void TearDown() override {
    for (const char* name : {"COMMFUSE_SHIM_NFS", "COMMFUSE_SHIM_LOCKS", "COMMFUSE_SHIM_RENAME"}) ::unsetenv(name);
  }

  void on_network(const std::vector<std::string>& places) const {
    std::string list;
    for (const std::string& place : places) {
      list += (place.starts_with('/') ? place : (dir_ / place.c_str()).string()) + ":";
    }
    ::setenv("COMMFUSE_SHIM_NFS", list.c_str(), 1);
  }

  [[nodiscard]] StoreOptions options() const {
    StoreOptions result = options_for(dir_ / "cache");
    result.directories.runtime = dir_ / "run";
    return result;
  }

  /// Obtains a kernel; "" if it was compiled here and stored.
  [[nodiscard]] std::string compile_alone(const Sample& sample) const {
    const Wanted wanted{sample.key, sample.json};
    const auto got = obtain(Store(options()), {&wanted, 1}, [&](std::size_t) {
      return Compiled{sample.cubin, testing::kFacts};
    });
    if (got[0].origin != Origin::kCompiled || got[0].cubin != sample.cubin) return "not compiled";
    return got[0].publication.stored() ? "" : got[0].publication.detail;
  }

  TemporaryDirectory dir_;
};

TEST_F(CacheOnANetwork, HasItsLocksOnTheMachineAndSaysWhy) {
  EXPECT_EQ(filesystem_of(dir_ / "cache").name, "nfs");
  const Store store(options());
  EXPECT_EQ(store.locks().try_lock(std::string(64, 'a')).result, LockAttempt::Result::kHeld);
  EXPECT_EQ(store.locks().directory(), dir_ / "run/commfuse");
  EXPECT_NE(store.locks().explanation().find("nfs"), std::string::npos) << store.locks().explanation();
  EXPECT_FALSE(fs::exists(dir_ / "cache/locks"));
}

TEST_F(CacheOnANetwork, NeverTakesALockThere) {
  ::setenv("COMMFUSE_SHIM_LOCKS", "hang", 1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(compile_alone(Sample()), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s) << "somebody waited for a lock on the network";
}

TEST_F(CacheOnANetwork, PassesOverARuntimeDirectoryThatIsOnANetworkToo) {
  on_network({"cache", "run"});
  const Store store(options());
  EXPECT_EQ(store.locks().try_lock(std::string(64, 'a')).result, LockAttempt::Result::kHeld);
  EXPECT_NE(store.locks().directory(), dir_ / "run/commfuse");
  EXPECT_FALSE(fs::exists(dir_ / "run/commfuse"));
}

TEST_F(CacheOnANetwork, HasNoLocksWhereEverythingIsOnANetworkAndCompilesAlone) {
  on_network({"/"});
  const Store store(options());
  EXPECT_EQ(store.locks().try_lock(std::string(64, 'a')).result, LockAttempt::Result::kUnavailable);
  EXPECT_EQ(store.locks().directory(), "");
  EXPECT_NE(store.locks().explanation().find("more than once"), std::string::npos);
  EXPECT_EQ(compile_alone(Sample()), "");
  EXPECT_TRUE(Sample().find(store));
}

TEST_F(CacheOnANetwork, ProcessesWhoseLocksAreRefusedCompileEachForItself) {
  ::setenv("COMMFUSE_SHIM_LOCKS", "refuse", 1);
  const Sample sample;
  EXPECT_EQ(Store(options()).locks().try_lock(sample.key).result, LockAttempt::Result::kUnavailable);
  std::vector<testing::Child> children;
  for (int i = 0; i < 8; ++i) {
    children.emplace_back([&]() -> std::string {
      const Wanted wanted{sample.key, sample.json};
      const auto got = obtain(Store(options()), {&wanted, 1}, [&](std::size_t) {
        return Compiled{sample.cubin, testing::kFacts};
      });
      return got[0].cubin == sample.cubin && got[0].origin != Origin::kFailed ? "" : "no kernel";
    });
  }
  for (testing::Child& child : children) EXPECT_EQ(child.result(), "");
  EXPECT_TRUE(sample.find(Store(options())));
}

TEST_F(CacheOnANetwork, AKernelWhosePublicationFailsIsReturnedAndLeavesNoLitter) {
  ::setenv("COMMFUSE_SHIM_RENAME", "busy", 1);
  EXPECT_NE(compile_alone(Sample()).find("busy"), std::string::npos);
  for (const auto& entry : fs::recursive_directory_iterator(dir_ / "cache")) EXPECT_FALSE(entry.is_regular_file());
}

}  // namespace
}  // namespace commfuse::cache
