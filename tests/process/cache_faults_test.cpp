// What disks, limits, users and SIGKILL do to a publish.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <map>

#include "cache/file.hpp"
#include "cache/gc.hpp"
#include "cache/store.hpp"
#include "process/cache_process.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::become;
using testing::options_for;
using testing::run_in_child;
using testing::Sample;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

constexpr uid_t kAlice = 61001, kBob = 61002;
constexpr gid_t kTeam = 61000;

// Files below a directory by extension; temporaries are ".tmp".
std::map<std::string, int> census(const fs::path& directory) {
  std::map<std::string, int> count;
  if (!fs::exists(directory)) return count;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) ++count[entry.path().extension().string()];
  }
  return count;
}

std::atomic<int> steps_left{0};
std::atomic<int> steps_seen{0};
void count_step(const char*) { ++steps_seen; }
void die_at_step(const char*) {
  if (--steps_left == 0) ::raise(SIGKILL);
}

TEST(CacheFaults, AProcessKilledAtAnyStepOfAPublishLeavesAMissOrTheWholeEntry) {
  const Sample sample;
  set_step_hook(count_step);
  {
    const TemporaryDirectory dir;
    ASSERT_TRUE(sample.publish(Store(options_for(dir / "cache"))).stored());
  }
  set_step_hook(nullptr);
  const int steps = steps_seen;
  ASSERT_EQ(steps, 12);  // directory, then open, half, written, synced, renamed of both files, then the last sync
  int complete = 0;
  for (int kill_at = 1; kill_at <= steps; ++kill_at) {
    SCOPED_TRACE("killed at step " + std::to_string(kill_at));
    const TemporaryDirectory dir;
    const std::string end = run_in_child([&] {
      steps_left = kill_at;
      set_step_hook(die_at_step);
      (void)sample.publish(Store(options_for(dir / "cache")));
      return std::string("survived");
    });
    ASSERT_EQ(end, "signal 9");
    const Store store(options_for(dir / "cache"));
    const Lookup after = sample.find(store);
    if (after) {
      EXPECT_EQ(after.hit->cubin, sample.cubin);
      ++complete;
    } else {
      EXPECT_EQ(after.reason, Miss::kAbsent) << after.detail;
    }
    EXPECT_TRUE(sample.publish(store).stored());
    ASSERT_TRUE(sample.find(store));
    EXPECT_EQ(sample.find(store).hit->cubin, sample.cubin);
  }
  EXPECT_EQ(complete, 2) << "after the metadata's rename, and after the last sync";
}

TEST(CacheFaults, AProcessKilledWhileReplacingABadEntryLeavesAMissOrTheWholeEntry) {
  const Sample sample;
  for (int kill_at = 1; kill_at <= 11; ++kill_at) {
    const TemporaryDirectory dir;
    const Store store(options_for(dir.path()));
    ASSERT_TRUE(sample.publish(store).stored());
    testing::write_all(sample.cubin_in(dir.path()), sample.cubin.substr(0, 100));
    ASSERT_EQ(run_in_child([&] {
                steps_left = kill_at;
                set_step_hook(die_at_step);
                (void)sample.publish(Store(options_for(dir.path())));
                return std::string("survived");
              }),
              "signal 9");
    const Lookup after = sample.find(store);
    EXPECT_EQ(after ? after.hit->cubin : sample.cubin, sample.cubin);
    EXPECT_TRUE(sample.publish(store).stored());
    EXPECT_TRUE(sample.find(store));
  }
}

// In a process whose files may not exceed `bytes`, publishes; returns what went otherwise than it should.
std::string publish_with_file_limit(const Sample& sample, const fs::path& directory, rlim_t bytes) {
  return run_in_child([&]() -> std::string {
    const rlimit limit{bytes, bytes};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "setrlimit";
    std::vector<std::string> warnings;
    const Store store(options_for(directory, &warnings));
    for (int i = 0; i < 2; ++i) {
      const Publication result = sample.publish(store);
      if (result.result != Publication::Result::kFailed) return "published: " + result.detail;
      if (result.detail.find("File too large") == std::string::npos) return result.detail;
    }
    if (warnings.size() != 1) return std::to_string(warnings.size()) + " warnings";
    return {};
  });
}

TEST(CacheFaults, AFileSizeLimitFailsThePublishAndNotTheProcess) {
  const TemporaryDirectory dir;
  EXPECT_EQ(publish_with_file_limit(Sample("large", 10'000), dir.path(), 4096), "");
  EXPECT_EQ(census(dir.path()), (std::map<std::string, int>{}));
  // Here the cubin fits and the metadata does not.
  EXPECT_EQ(publish_with_file_limit(Sample("small", 10), dir.path(), 400), "");
  EXPECT_EQ(census(dir.path()), (std::map<std::string, int>{}));
}

TEST(CacheFaults, AFullDiskFailsThePublishAndKeepsWhatIsThere) {
  if (!testing::private_mounts_work()) GTEST_SKIP() << "mounting is not allowed here";
  const TemporaryDirectory dir;
  EXPECT_EQ(run_in_child([&]() -> std::string {
              if (!testing::enter_private_mounts()) return "unshare";
              if (::mount("none", dir.path().c_str(), "tmpfs", 0, "size=1m,mode=0700") != 0) return "mount";
              std::vector<std::string> warnings;
              const Store store(options_for(dir.path(), &warnings));
              int stored = 0;
              for (int i = 0; i < 20; ++i) {
                const Sample sample("kernel_" + std::to_string(i), 100'000);
                const Publication result = sample.publish(store);
                stored += result.stored() ? 1 : 0;
                if (result.stored() != sample.find(store).hit.has_value()) return "store and find disagree";
              }
              if (stored < 5 || stored > 10) return std::to_string(stored) + " stored";
              if (warnings.size() != 1) return std::to_string(warnings.size()) + " warnings";
              auto files = census(dir.path());
              if (files[".json"] != stored || files[".cubin"] != stored || files[".tmp"] != 0) return "litter";
              return {};
            }),
            "");
}

TEST(CacheFaults, AReadOnlyMountIsReadAndWarnedOfOnce) {
  if (!testing::private_mounts_work()) GTEST_SKIP() << "mounting is not allowed here";
  const TemporaryDirectory dir;
  const Sample here("here"), missing("missing");
  ASSERT_TRUE(here.publish(Store(options_for(dir.path()))).stored());
  EXPECT_EQ(run_in_child([&]() -> std::string {
              const char* path = dir.path().c_str();
              if (!testing::enter_private_mounts()) return "unshare";
              if (::mount(path, path, nullptr, MS_BIND, nullptr) != 0) return "bind";
              if (::mount(nullptr, path, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) return "remount";
              std::vector<std::string> warnings;
              const Store store(options_for(dir.path(), &warnings));
              if (!here.find(store)) return "not found";
              if (missing.find(store)) return "found";
              for (int i = 0; i < 2; ++i) {
                if (missing.publish(store).result != Publication::Result::kFailed) return "published";
              }
              if (warnings.size() != 1) return std::to_string(warnings.size()) + " warnings";
              if (warnings[0].find("COMMFUSE_CACHE_DIR") == std::string::npos) return warnings[0];
              return {};
            }),
            "");
}

TEST(CacheFaults, EvictionUnderReadersIsAMissForThemAndNeverAWrongKernel) {
  const TemporaryDirectory dir;
  std::vector<Sample> all;
  for (int i = 0; i < 12; ++i) all.emplace_back("kernel_" + std::to_string(i), 3000);
  const auto read_and_heal = [&]() -> std::string {
    const Store store(options_for(dir / "cache"));
    for (int round = 0; round < 150; ++round) {
      for (const Sample& sample : all) {
        const Lookup found = sample.find(store);
        if (found && found.hit->cubin != sample.cubin) return "a wrong kernel";
        if (!found && !sample.publish(store).stored()) return "not stored";
      }
    }
    return {};
  };
  std::vector<testing::Child> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(read_and_heal);
  std::uint64_t removed = 0;
  const Store store(options_for(dir / "cache"));
  GcOptions everything;
  everything.max_bytes = 1;
  everything.grace = std::chrono::seconds(0);
  // On a busy machine the readers may not have stored anything yet.
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int round = 0; round < 150 || (removed == 0 && std::chrono::steady_clock::now() < enough); ++round) {
    removed += store.collect(everything).removed.size();
  }
  for (testing::Child& reader : readers) EXPECT_EQ(reader.result(), "");
  EXPECT_GT(removed, 0u);
}

class CacheUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can act as two users";
    ASSERT_EQ(::chmod(dir_.path().c_str(), 0755), 0);
  }
  // A directory of Alice's.
  fs::path make(const char* name, unsigned mode) {
    const fs::path path = dir_ / name;
    EXPECT_EQ(::mkdir(path.c_str(), 0700), 0);
    EXPECT_EQ(::chown(path.c_str(), kAlice, kTeam), 0);
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  TemporaryDirectory dir_;
};

std::string publish_as(uid_t uid, gid_t gid, const Sample& sample, const StoreOptions& options) {
  return run_in_child([&]() -> std::string {
    ::umask(022);
    if (!become(uid, gid)) return "become";
    const Publication result = sample.publish(Store(options));
    return result.stored() ? "" : result.detail;
  });
}

std::string find_as(uid_t uid, gid_t gid, const Sample& sample, const StoreOptions& options) {
  return run_in_child([&]() -> std::string {
    if (!become(uid, gid)) return "become";
    std::vector<std::string> warnings;
    StoreOptions counted = options;
    counted.warn = [&](std::string_view text) { warnings.emplace_back(text); };
    const Lookup found = sample.find(Store(counted));
    std::string text = found ? "" : std::string(to_string(found.reason));
    for (const std::string& warning : warnings) text += "; " + warning;
    return text;
  });
}

TEST_F(CacheUsers, TwoUsersOfAGroupShareASetgidDirectoryAndHealEachOthersEntries) {
  const fs::path shared = make("shared", 02770);
  const StoreOptions options = options_for(shared);
  const Sample of_alice("of_alice"), of_bob("of_bob");
  EXPECT_EQ(publish_as(kAlice, kTeam, of_alice, options), "");
  EXPECT_EQ(find_as(kBob, kTeam, of_alice, options), "");
  EXPECT_EQ(publish_as(kBob, kTeam, of_bob, options), "");
  EXPECT_EQ(find_as(kAlice, kTeam, of_bob, options), "");
  testing::write_all(of_alice.cubin_in(shared), "broken");
  EXPECT_EQ(publish_as(kBob, kTeam, of_alice, options), "");
  EXPECT_EQ(find_as(kAlice, kTeam, of_alice, options), "");
  struct stat status {};
  ASSERT_EQ(::stat(shared.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 02770u);
}

TEST_F(CacheUsers, ADirectoryThatOthersCanWriteToIsRefusedUnlessNamed) {
  const Sample sample;
  for (const unsigned mode : {0777u, 01777u, 0770u}) {
    SCOPED_TRACE(mode);
    const fs::path open = make(std::to_string(mode).c_str(), mode);
    StoreOptions options = options_for(open);
    EXPECT_NE(publish_as(kAlice, kTeam, sample, options), "");
    options.directories.trusted = {open};
    EXPECT_EQ(publish_as(kAlice, kTeam, sample, options), "");
    EXPECT_EQ(find_as(kAlice, kTeam, sample, options), "");
    options.directories.trusted = {};
    const std::string refused = find_as(kAlice, kTeam, sample, options);
    EXPECT_EQ(refused.rfind("absent; ", 0), 0u) << refused;
    EXPECT_NE(refused.find("COMMFUSE_CACHE_TRUST"), std::string::npos) << refused;
  }
}

TEST_F(CacheUsers, AnotherUsersDirectoryIsRefusedAlsoByRootUnlessNamed) {
  const fs::path of_alice = make("of_alice", 0755);
  const Sample sample;
  StoreOptions options = options_for(of_alice);
  ASSERT_EQ(publish_as(kAlice, kTeam, sample, options), "");
  EXPECT_NE(find_as(kBob, kTeam, sample, options), "");
  EXPECT_FALSE(sample.find(Store(options)));
  options.directories.trusted = {fs::path(of_alice.string() + "/")};
  EXPECT_EQ(find_as(kBob, kTeam, sample, options), "");
  EXPECT_TRUE(sample.find(Store(options)));
}

TEST_F(CacheUsers, RootsImageLayerServesAPlainUser) {
  const fs::path baked = make("baked", 0755);
  ASSERT_EQ(::chown(baked.c_str(), 0, 0), 0);
  const Sample sample;
  ASSERT_TRUE(sample.publish(Store(options_for(baked))).stored());
  StoreOptions options;
  options.directories.readonly = {baked};
  EXPECT_EQ(find_as(kBob, kTeam, sample, options), "");
}

TEST_F(CacheUsers, ADirectoryWithoutPermissionIsAMissAndAFailedPublishWithOneWarning) {
  const fs::path closed = make("closed", 0700);
  const Sample sample;
  EXPECT_EQ(run_in_child([&]() -> std::string {
              if (!become(kBob, kTeam)) return "become";
              std::vector<std::string> warnings;
              const Store store(options_for(closed / "cache", &warnings));
              for (int i = 0; i < 2; ++i) {
                if (sample.find(store).reason != Miss::kUnreadable) return "find";
                if (sample.publish(store).result != Publication::Result::kFailed) return "publish";
              }
              return warnings.size() == 1 ? "" : std::to_string(warnings.size()) + " warnings";
            }),
            "");
}

}  // namespace
}  // namespace commfuse::cache
