#include "cache/gc.hpp"

#include <gtest/gtest.h>

#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::options_for;
using testing::Sample;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class Gc : public ::testing::Test {
 protected:
  Gc() : options_(options_for(dir_ / "cache")) {
    fs::create_directory(dir_ / "run");
    options_.directories.runtime = dir_ / "run";
    options_.max_bytes = 0;
  }

  // Publishes kernels of the same size; the first was used longest ago, each an hour after the one before.
  std::vector<Sample> fill(int count) {
    const Store store(options_);
    std::vector<Sample> all;
    for (int i = 0; i < count; ++i) {
      all.emplace_back("kernel_" + std::to_string(i), 2000);
      EXPECT_TRUE(all.back().publish(store).stored());
      used(all.back(), std::chrono::hours(count - i));
    }
    return all;
  }

  void used(const Sample& sample, std::chrono::seconds ago) {
    fs::last_write_time(sample.json_in(options_.directories.writable), fs::file_time_type::clock::now() - ago);
  }

  [[nodiscard]] std::string present(const std::vector<Sample>& all) const {
    const Store store(options_);
    std::string text;
    for (const Sample& sample : all) text += store.peek(sample.key, sample.json) ? '1' : '0';
    return text;
  }

  [[nodiscard]] std::uint64_t bytes_of(const Sample& sample) const {
    return fs::file_size(sample.json_in(options_.directories.writable)) +
           fs::file_size(sample.cubin_in(options_.directories.writable));
  }

  testing::TemporaryDirectory dir_;
  StoreOptions options_;
};

TEST_F(Gc, EvictsWhatWasUsedLeastRecentlyAndAHitIsAUse) {
  const auto all = fill(6);
  const Store store(options_);
  ASSERT_TRUE(all[0].find(store));  // the oldest becomes the youngest
  GcOptions options;
  options.max_bytes = 4 * bytes_of(all[0]);
  const GcReport report = store.collect(options);
  EXPECT_EQ(present(all), "100011") << "below the bound by a tenth";
  EXPECT_EQ(report.removed, (std::vector<std::string>{all[1].key, all[2].key, all[3].key}));
  EXPECT_EQ(report.entries, 6u);
  EXPECT_LE(report.bytes_after, options.max_bytes);
  EXPECT_EQ(report.spared, 0u);
}

TEST_F(Gc, DoesNothingWithinTheBound) {
  const auto all = fill(3);
  GcOptions options;
  options.max_bytes = 3 * bytes_of(all[0]) + 100;
  const GcReport report = Store(options_).collect(options);
  EXPECT_EQ(present(all), "111");
  EXPECT_EQ(report.bytes, report.bytes_after);
}

TEST_F(Gc, SparesWhatWasUsedWithinTheGrace) {
  const auto all = fill(4);
  for (const Sample& sample : all) used(sample, 100s);
  GcOptions options;
  options.max_bytes = 1;
  EXPECT_EQ(Store(options_).collect(options).spared, 4u);
  EXPECT_EQ(present(all), "1111");
  options.grace = 50s;
  EXPECT_EQ(Store(options_).collect(options).removed.size(), 4u);
  EXPECT_EQ(present(all), "0000");
}

TEST_F(Gc, SparesWhatIsLeasedOrBeingCompiled) {
  const auto all = fill(4);
  const Store store(options_);
  GcOptions options;
  options.max_bytes = 1;
  {
    const std::vector<std::string> leased = {all[0].key, all[3].key};
    const Locks::Lease lease = store.locks().lease(leased);
    const Locks::Lease second = store.locks().lease(leased);  // readers do not keep each other out
    const LockAttempt lock = store.locks().try_lock(all[1].key);
    ASSERT_EQ(lock.result, LockAttempt::Result::kHeld);
    EXPECT_EQ(Store(options_).collect(options).spared, 3u);
    EXPECT_EQ(present(all), "1101");
  }
  EXPECT_EQ(Store(options_).collect(options).removed.size(), 3u);
}

TEST_F(Gc, ATimeFarInTheFutureDoesNotProtectForEver) {
  const auto all = fill(3);
  used(all[1], -std::chrono::hours(24 * 365));
  GcOptions options;
  options.max_bytes = 2 * bytes_of(all[0]) + 1000;
  (void)Store(options_).collect(options);
  EXPECT_EQ(present(all), "101");
}

TEST_F(Gc, SweepsWhatDeadProcessesLeftAndNothingYounger) {
  const auto all = fill(1);
  const fs::path sub = all[0].json_in(options_.directories.writable).parent_path();
  const Sample no_cubin("no_cubin"), no_json("no_json"), fresh("fresh");
  testing::write_all(sub / (".x.json.1.0011223344556677.tmp"), "half");
  testing::write_all(sub / (".y.json.1.0011223344556677.tmp"), "half");
  testing::write_all(no_cubin.json_in(options_.directories.writable), "{}");
  testing::write_all(no_json.cubin_in(options_.directories.writable), "x");
  testing::write_all(fresh.cubin_in(options_.directories.writable), "x");
  const auto old = fs::file_time_type::clock::now() - 2h;
  for (const fs::path& file : {sub / ".x.json.1.0011223344556677.tmp", no_cubin.json_in(options_.directories.writable),
                               no_json.cubin_in(options_.directories.writable)}) {
    fs::last_write_time(file, old);
  }
  const GcReport report = Store(options_).collect({});
  EXPECT_EQ(report.stale_files_removed, 3u);
  EXPECT_TRUE(fs::exists(sub / ".y.json.1.0011223344556677.tmp"));
  EXPECT_TRUE(fs::exists(fresh.cubin_in(options_.directories.writable)));
  EXPECT_FALSE(fs::exists(no_cubin.json_in(options_.directories.writable)));
  EXPECT_EQ(present(all), "1");
}

TEST_F(Gc, PrunesByAgeAndByList) {
  const auto all = fill(5);
  GcOptions by_age;
  by_age.max_age = 150min;
  (void)Store(options_).collect(by_age);
  EXPECT_EQ(present(all), "00011");
  GcOptions by_list;
  by_list.keep_only = std::set<std::string>{all[3].key};
  (void)Store(options_).collect(by_list);
  EXPECT_EQ(present(all), "00010");
}

TEST_F(Gc, ADryRunReportsAndRemovesNothing) {
  const auto all = fill(4);
  GcOptions options;
  options.max_bytes = 1;
  options.dry_run = true;
  const GcReport report = Store(options_).collect(options);
  EXPECT_EQ(report.removed.size(), 4u);
  EXPECT_EQ(report.bytes_after, 0u);
  EXPECT_EQ(present(all), "1111");
}

TEST_F(Gc, RemovesDamagedEntriesOnDemand) {
  const auto all = fill(3);
  testing::write_all(all[1].cubin_in(options_.directories.writable), "damaged");
  GcOptions options;
  options.remove_damaged = true;
  const GcReport report = Store(options_).collect(options);
  EXPECT_EQ(report.damaged_removed, 1u);
  EXPECT_EQ(report.removed, std::vector<std::string>{all[1].key});
  EXPECT_EQ(present(all), "101");
}

TEST_F(Gc, PublishingKeepsTheDirectoryWithinItsBound) {
  const auto all = fill(8);
  options_.max_bytes = 5 * bytes_of(all[0]);
  const Sample one_more("one_more", 2000);
  EXPECT_TRUE(one_more.publish(Store(options_)).stored());
  const std::string left = present(all);
  EXPECT_LE(std::count(left.begin(), left.end(), '1'), 4);
  EXPECT_EQ(left.substr(5), "111");
  EXPECT_EQ(present({one_more}), "1");
}

TEST_F(Gc, TheBoundOfTheEnvironmentHoldsUnlessTheCallerSetsOne) {
  const std::vector<Sample> all = fill(10);
  options_.directories.max_bytes = 5 * bytes_of(all[0]);
  (void)Sample("one_more", 2000).publish(Store(options_));
  EXPECT_EQ(Store(options_).list().size(), 11u) << "the caller has set 0";
  options_.max_bytes.reset();
  (void)Sample("and_another", 2000).publish(Store(options_));
  EXPECT_LE(Store(options_).list().size(), 5u);
}

TEST_F(Gc, AMissingOrForeignDirectoryIsAnEmptyOne) {
  GcOptions options;
  options.max_bytes = 1;
  EXPECT_EQ(Store(options_).collect(options).entries, 0u);
  EXPECT_EQ(Store(StoreOptions{}).collect(options).entries, 0u);
  testing::write_all(options_.directories.writable / "precious/data.json", "keep");
  testing::write_all(options_.directories.writable / "ab/notes.txt", "keep");
  options.stale_after = 0s;
  options.grace = 0s;
  options.keep_only = std::set<std::string>{};
  (void)Store(options_).collect(options);
  EXPECT_TRUE(fs::exists(options_.directories.writable / "precious/data.json"));
  EXPECT_TRUE(fs::exists(options_.directories.writable / "ab/notes.txt"));
}

}  // namespace
}  // namespace commfuse::cache
