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
  const Outcome text = run_commfuse({"stats", "--cache-dir", cache()});
  EXPECT_NE(text.out.find("1 damaged"), string::npos) << text.out;
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
