// Many precompile processes at a time.
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <set>
#include <string>
#include <vector>

#include "process/cli_process.hpp"

namespace commfuse::test {
namespace {

using std::string;

constexpr int kProcesses = 8;

std::vector<Outcome> precompile_together(const string& file, const string& cache, bool numbered) {
  std::vector<std::future<Outcome>> running;
  for (int rank = 0; rank < kProcesses; ++rank) {
    std::vector<string> command = {"precompile", file,     "--arch", "sm_90a", "--cache-dir",
                                   cache,        "--jobs", "1",      "--json"};
    if (numbered)
      command.insert(command.end(), {"--rank", std::to_string(rank), "--ranks", std::to_string(kProcesses)});
    running.push_back(std::async(std::launch::async, [command] { return run_commfuse(command); }));
  }
  std::vector<Outcome> outcomes;
  for (auto& each : running) outcomes.push_back(each.get());
  return outcomes;
}

class CliShare : public testing::TestWithParam<bool> {};

TEST_P(CliShare, ProcessesStartedTogetherCompileEachKernelOnceBetweenThem) {
  const TemporaryFolder folder;
  const string file = (folder.path() / "many.json").string();
  std::ofstream(file) << R"({"name":"many","world_size":2,"hidden_size":1024,"dtype":"bf16","max_tokens":64,)"
                      << R"("operations":[{"op":"all_reduce","patterns":["all_reduce","residual_rms_norm"],)"
                      << R"("dtypes":["bf16","fp16"]}]})";
  int compiled = 0;
  std::set<string> keys;
  std::set<string> compiled_keys;
  for (const Outcome& outcome : precompile_together(file, (folder.path() / "cache").string(), GetParam())) {
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json document = outcome.document();
    EXPECT_EQ(document.at("failed"), 0);
    compiled += document.at("compiled").get<int>();
    for (const auto& report : document.at("deployments").at(0).at("reports")) {
      keys.insert(report.at("key").get<string>());
      EXPECT_GT(report.at("cubin_bytes").get<int>(), 0);
      if (report.at("origin") == "compiled") compiled_keys.insert(report.at("key").get<string>());
    }
    EXPECT_EQ(document.at("compiled").get<int>() + document.at("hits").get<int>(), document.at("kernels"));
  }
  EXPECT_GE(keys.size(), 4U);
  EXPECT_EQ(compiled, static_cast<int>(keys.size()));
  EXPECT_EQ(compiled_keys, keys);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutRanks, CliShare, testing::Bool());

TEST(CliShareUsage, RankWithoutRanksExitsWithTwo) {
  EXPECT_EQ(run_commfuse({"precompile", "any.json", "--rank", "1"}).exit_code, 2);
}

}  // namespace
}  // namespace commfuse::test
