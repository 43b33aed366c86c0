// gc, clean, stats, and what doctor says of layers and locks.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "process/cli_small_cache.hpp"

namespace commfuse::test {
namespace {

using nlohmann::json;
using std::string;

class CliUpkeep : public CopiedCache {
 protected:
  [[nodiscard]] int kernels() const { return run({"stats"}).document().at("kernels").get<int>(); }

  const SmallCache& small_ = SmallCache::get();
  const int all_ = static_cast<int>(small_.keys().size());
};

TEST_F(CliUpkeep, GcWithoutBoundsRemovesOnlyTheDamaged) {
  std::filesystem::resize_file(entry_file(small_.keys()[0], ".cubin"), 100);
  const Outcome outcome = run({"gc"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.document().at("damaged_removed"), 1);
  EXPECT_EQ(kernels(), all_ - 1);
}

TEST_F(CliUpkeep, GcTakesWhatIsOlderThanItsBoundAndNothingElse) {
  age(small_.keys()[0], 48);
  age(small_.keys()[1], 12);
  const Outcome dry = run({"gc", "--max-age", "1d", "--dry-run"});
  EXPECT_EQ(dry.document().at("removed"), json::array({small_.keys()[0]})) << dry.err;
  EXPECT_EQ(kernels(), all_) << "a dry run removed something";
  const Outcome outcome = run({"gc", "--max-age", "1d"});
  EXPECT_EQ(outcome.document().at("removed"), json::array({small_.keys()[0]})) << outcome.err;
  EXPECT_EQ(kernels(), all_ - 1);
}

TEST_F(CliUpkeep, GcShrinksToABoundLeastRecentlyUsedFirst) {
  int hours = 100;
  for (const string& key : small_.keys()) age(key, hours--);
  const std::uint64_t bytes = run({"stats"}).document().at("bytes");
  const Outcome outcome = run({"gc", "--max-bytes", std::to_string(bytes - 1)});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json removed = outcome.document().at("removed");
  ASSERT_GE(removed.size(), 1U);
  EXPECT_EQ(removed.at(0), small_.keys()[0]);
  EXPECT_LT(outcome.document().at("bytes_after").get<std::uint64_t>(), bytes);
  EXPECT_EQ(kernels(), all_ - static_cast<int>(removed.size()));
}

TEST_F(CliUpkeep, GcKeepsWhatAManifestLists) {
  for (const string& key : small_.keys()) age(key, 48);
  EXPECT_EQ(run({"gc", "--keep", small_.manifest()}).document().at("removed"), json::array());
  std::ofstream(at("none.json")) << R"({"kernels":[],"name":"none","schema":1})";
  const Outcome outcome = run({"gc", "--keep", at("none.json")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.document().at("removed").size(), small_.keys().size());
}

TEST_F(CliUpkeep, GcSparesWhatWasUsedAMomentAgo) {
  const Outcome outcome = run({"gc", "--max-bytes", "1"});
  EXPECT_EQ(outcome.document().at("removed").size(), 0U);
  EXPECT_EQ(kernels(), all_);
}

TEST_F(CliUpkeep, CleanEmptiesTheFolderButNotTheLayersBelow) {
  const Outcome dry = run({"clean", "--dry-run"});
  EXPECT_EQ(dry.document().at("removed").size(), small_.keys().size());
  EXPECT_EQ(kernels(), all_);
  const Outcome outcome =
      run_commfuse({"clean", "--cache-dir", cache(), "--json"}, {{"COMMFUSE_CACHE_READONLY", small_.cache()}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(kernels(), 0);
  EXPECT_EQ(run_commfuse({"stats", "--cache-dir", small_.cache(), "--json"}).document().at("kernels"), all_);
}

TEST_F(CliUpkeep, StatsAddUp) {
  std::filesystem::resize_file(entry_file(small_.keys()[0], ".json"), 10);
  const json document = run({"stats"}).document();
  EXPECT_EQ(document.at("kernels"), all_ - 1);
  EXPECT_EQ(document.at("damaged"), 1);
  EXPECT_EQ(document.at("archs").at("sm_90a").at("kernels"), all_ - 1);
  EXPECT_EQ(document.at("layers").at(cache()).at("bytes"), document.at("bytes"));
  ASSERT_EQ(document.at("compilers").size(), 1U);
  EXPECT_GT(document.at("compile_ms").get<double>(), 0);
  EXPECT_GT(document.at("phases_ms").at("ptxas").get<double>(), 0);
  const Outcome text = run_commfuse({"stats", "--cache-dir", cache()});
  EXPECT_NE(text.out.find("1 damaged"), string::npos) << text.out;
}

TEST_F(CliUpkeep, StatsCountHitsAndMissesByReasonAndCompilations) {
  const auto usage = [&] { return run({"stats"}).document().at("usage"); };
  // The copy has brought along what filling it came to.
  EXPECT_EQ(usage().at("misses").at("absent"), all_);
  EXPECT_EQ(usage().at("compiled"), all_);
  EXPECT_GT(usage().at("compile_ms").at("front_end").get<double>(), 0);
  std::filesystem::resize_file(entry_file(small_.keys()[0], ".json"), 10);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run({"precompile", small_.deployment(), "--arch", "sm_90a"}).exit_code, 0);
  const json after = usage();
  EXPECT_EQ(after.at("hits"), 2 * all_ - 1);
  EXPECT_EQ(after.at("misses"), json({{"absent", all_}, {"malformed", 1}}));
  EXPECT_EQ(after.at("compiled"), all_ + 1);
  EXPECT_EQ(after.at("failed"), 0);
  const Outcome text = run_commfuse({"stats", "--cache-dir", cache()});
  EXPECT_NE(text.out.find("1 malformed"), string::npos) << text.out;
}

TEST_F(CliUpkeep, DoctorNamesTheBoundAndWhatIsWrongWithIt) {
  const auto bound = [&](const string& value) {
    return run_commfuse({"doctor", "--cache-dir", cache(), "--json"}, {{"COMMFUSE_CACHE_MAX_BYTES", value}});
  };
  EXPECT_EQ(bound("").document().at("cache").at("max_bytes"), std::uint64_t{2} << 30);
  EXPECT_EQ(bound("500MiB").document().at("cache").at("max_bytes"), std::uint64_t{500} << 20);
  const Outcome wrong = bound("plenty");
  EXPECT_EQ(wrong.document().at("cache").at("max_bytes"), std::uint64_t{2} << 30);
  EXPECT_NE(wrong.err.find("COMMFUSE_CACHE_MAX_BYTES"), string::npos) << wrong.err;
}

TEST_F(CliUpkeep, ListSorts) {
  age(small_.keys()[0], 30);
  const auto listed = [&](const string& by) { return run({"list", "--sort", by}).document().at("entries"); };
  const auto expect_falling = [&](const string& by, const string& member) {
    const json entries = listed(by);
    ASSERT_EQ(entries.size(), static_cast<std::size_t>(all_));
    for (std::size_t i = 1; i < entries.size(); ++i) {
      EXPECT_GE(entries[i - 1].at(member).get<double>(), entries[i].at(member).get<double>()) << by;
    }
    EXPECT_GT(entries[0].at(member).get<double>(), 0) << by;
  };
  expect_falling("size", "disk_bytes");
  expect_falling("time", "compile_ms");
  expect_falling("registers", "registers");
  EXPECT_EQ(listed("used")[0].at("key"), small_.keys()[0]);
  EXPECT_EQ(listed("key")[0].at("key"), small_.keys()[0]);
  EXPECT_LE(listed("age")[0].at("created"), listed("age")[static_cast<std::size_t>(all_) - 1].at("created"));
  for (const json& entry : listed("key")) EXPECT_GT(entry.at("instructions").get<int>(), 0);
  EXPECT_EQ(run({"list", "--sort", "colour"}).exit_code, 2);
}

TEST_F(CliUpkeep, DoctorShowsLayersAndTheFolderOfLocks) {
  const string missing = at("missing");
  const Outcome outcome = run_commfuse({"doctor", "--cache-dir", cache(), "--json"},
                                       {{"COMMFUSE_CACHE_READONLY", small_.cache() + ":" + missing}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json found = outcome.document().at("cache");
  ASSERT_EQ(found.at("layers").size(), 3U);
  EXPECT_EQ(found.at("layers").at(0).at("path"), cache());
  EXPECT_EQ(found.at("layers").at(0).at("writable"), true);
  EXPECT_EQ(found.at("layers").at(1).at("kernels"), all_);
  EXPECT_EQ(found.at("layers").at(1).at("writable"), false);
  EXPECT_EQ(found.at("layers").at(2).at("kind"), "missing");
  EXPECT_NE(found.at("locks").at("dir"), "");
  EXPECT_NE(found.at("locks").at("reason"), "");
}

#ifdef COMMFUSE_NETWORK_SHIM
TEST_F(CliUpkeep, DoctorSaysWhereLocksAreWhenTheCacheIsOnANetwork) {
  const json found = run_commfuse({"doctor", "--cache-dir", cache(), "--json"},
                                  {{"LD_PRELOAD", COMMFUSE_NETWORK_SHIM}, {"COMMFUSE_SHIM_NFS", cache()}})
                         .document()
                         .at("cache");
  EXPECT_EQ(found.at("layers").at(0).at("file_system"), "nfs (no locks)");
  EXPECT_FALSE(found.at("locks").at("dir").get<string>().starts_with(cache()));
  EXPECT_NE(found.at("locks").at("dir"), "");
  EXPECT_NE(found.at("locks").at("reason").get<string>().find("nfs"), string::npos);
}
#endif

TEST_F(CliUpkeep, WrongUsageExitsWithTwo) {
  for (const auto& command : {std::vector<string>{"gc", "--max-bytes", "0"},
                              {"gc", "--max-bytes", "lots"},
                              {"gc", "--max-age", "soon"},
                              {"gc", "--max-age", "-1d"},
                              {"gc", "--keep", at("nothing.json")},
                              {"clean", "everything"},
                              {"stats", "extra"}}) {
    EXPECT_EQ(run(command).exit_code, 2) << testing::PrintToString(command);
  }
}

}  // namespace
}  // namespace commfuse::test
