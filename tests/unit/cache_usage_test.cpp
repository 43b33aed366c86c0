#include "cache/usage.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>
#include <vector>

#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::options_for;
using testing::Sample;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

Usage example() {
  Usage usage;
  usage.hits = 3;
  usage.compiled = 2;
  usage.failed = 1;
  usage.misses = {{"absent", 2}, {"cubin_hash", 1}};
  usage.compile_ms = {{"total", 100.5}, {"ptxas", 60}};
  return usage;
}

TEST(Usage, AddsUpOverEverybodyWhoRecords) {
  const TemporaryDirectory dir;
  for (int i = 0; i < 3; ++i) Store(options_for(dir.path())).record(example());
  const Usage sum = Store(options_for(dir.path())).usage();
  EXPECT_EQ(sum.hits, 9u);
  EXPECT_EQ(sum.compiled, 6u);
  EXPECT_EQ(sum.failed, 3u);
  EXPECT_EQ(sum.misses, (std::map<std::string, std::uint64_t>{{"absent", 6}, {"cubin_hash", 3}}));
  EXPECT_EQ(sum.compile_ms.at("total"), 301.5);
  EXPECT_EQ(sum.compile_ms.at("ptxas"), 180);
}

TEST(Usage, CreatesNoDirectoryAndWritesNothingForNothing) {
  const TemporaryDirectory dir;
  Store(options_for(dir / "missing")).record(example());
  EXPECT_FALSE(fs::exists(dir / "missing"));
  Store(options_for(dir.path())).record({});
  EXPECT_TRUE(fs::is_empty(dir.path()));
  EXPECT_TRUE(Store(StoreOptions{}).usage().empty());
}

TEST(Usage, StaysSmallAndLosesNothingWhenItIsSummedUp) {
  const TemporaryDirectory dir;
  StoreOptions options = options_for(dir.path());
  options.directories.runtime = dir.path();
  const Store store(options);
  // A process died while it summed up: its lines still count.
  testing::write_all(dir / "usage.summed", example().to_json() + "\n");
  constexpr std::uint64_t kRecords = 3000;
  for (std::uint64_t i = 0; i < kRecords; ++i) store.record(example());
  EXPECT_LT(fs::file_size(dir / kUsageFile), kMaxUsageBytes + 1000);
  EXPECT_FALSE(fs::exists(dir / "usage.summed"));
  EXPECT_EQ(store.usage().hits, 3 * (kRecords + 1));
  EXPECT_EQ(store.usage().compile_ms.at("ptxas"), 60.0 * (kRecords + 1));
}

TEST(Usage, PassesOverWhatIsNoLineOfIt) {
  const std::string good = example().to_json();
  EXPECT_EQ(Usage::parse_lines(good).hits, 3u);
  EXPECT_EQ(Usage::parse_lines("\n\n{\nnull\n[1]\n" + good.substr(0, 20) + "\n" + good + "\n\xff\n").hits, 3u);
  EXPECT_TRUE(Usage::parse_lines("").empty());
  const Usage odd = Usage::parse_lines(
      R"({"hits":-1,"compiled":"2","failed":1.5,"misses":{"absent":-2,"x":[]},"compile_ms":{"total":-1,"ptxas":null}})");
  EXPECT_TRUE(odd.empty());
  EXPECT_TRUE(odd.compile_ms.empty());
  EXPECT_EQ(Usage::parse_lines(R"({"misses":5,"compile_ms":[],"hits":4})").hits, 4u);
}

TEST(Usage, GrantsWhatTheDirectoryGrants) {
  for (const mode_t mode : {0700u, 0755u, 02770u}) {
    const TemporaryDirectory dir;
    ASSERT_EQ(::chmod(dir.path().c_str(), mode), 0);
    Store(options_for(dir.path())).record(example());
    struct stat status {};
    ASSERT_EQ(::stat((dir / kUsageFile).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777u, mode & 0666u) << std::oct << mode;
  }
}

TEST(Usage, IsNoEntryAndStaysWhenEntriesAreCollected) {
  const TemporaryDirectory dir;
  const Store store(options_for(dir.path()));
  ASSERT_TRUE(Sample().publish(store).stored());
  store.record(example());
  EXPECT_EQ(store.list().size(), 1u);
  EXPECT_EQ(store.usage().hits, 3u);
}

}  // namespace
}  // namespace commfuse::cache
