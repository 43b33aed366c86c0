// precompile --manifest and verify.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "process/cli_small_cache.hpp"

namespace commfuse::test {
namespace {

using nlohmann::json;
using std::string;

class CliVerify : public CopiedCache {
 protected:
  const SmallCache& small_ = SmallCache::get();
};

TEST_F(CliVerify, CompleteCacheExitsWithZero) {
  for (const auto& command : {std::vector<string>{"verify", "--manifest", small_.manifest()},
                              {"verify", small_.deployment(), "--arch", "sm_90a"}}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.document().at("complete"), true);
    EXPECT_EQ(outcome.document().at("kernels"), small_.keys().size());
  }
}

TEST_F(CliVerify, ManifestNeedsNoCompiler) {
  const Outcome outcome = run_commfuse({"verify", "--manifest", small_.manifest(), "--cache-dir", cache()},
                                       {{"COMMFUSE_NVRTC", "/nowhere/libnvrtc.so"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(CliVerify, DeploymentWithoutCompilerIsCheckedAgainstTheKernelsThatAreThere) {
  const Outcome outcome =
      run_commfuse({"verify", small_.deployment(), "--arch", "sm_90a", "--cache-dir", cache(), "--json"},
                   {{"COMMFUSE_NVRTC", "/nowhere/libnvrtc.so"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::filesystem::remove(entry_file(small_.keys()[0], ".json"));
  const Outcome holed =
      run_commfuse({"verify", small_.deployment(), "--arch", "sm_90a", "--cache-dir", cache(), "--json"},
                   {{"COMMFUSE_NVRTC", "/nowhere/libnvrtc.so"}});
  EXPECT_EQ(holed.exit_code, 1) << holed.err;
  EXPECT_EQ(holed.document().at("missing").at(0).at("key"), small_.keys()[0]);
}

TEST_F(CliVerify, DamagedAndAbsentKernelsAreNamedWithTheReason) {
  const string& damaged = small_.keys()[0];
  const string& absent = small_.keys()[1];
  std::filesystem::resize_file(entry_file(damaged, ".cubin"), 100);
  std::filesystem::remove(entry_file(absent, ".json"));
  const Outcome outcome = run({"verify", "--manifest", small_.manifest()});
  EXPECT_EQ(outcome.exit_code, 1);
  const json missing = outcome.document().at("missing");
  ASSERT_EQ(missing.size(), 2U);
  for (const json& one : missing) {
    const bool is_damaged = one.at("key") == damaged;
    EXPECT_EQ(one.at("reason"), is_damaged ? "cubin_size" : "absent") << one;
    EXPECT_NE(one.at(is_damaged ? "detail" : "explanation"), "") << one;
  }
  const Outcome text = run_commfuse({"verify", "--manifest", small_.manifest(), "--cache-dir", cache()});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_NE(text.out.find("missing " + damaged.substr(0, 12)), string::npos) << text.out;
  EXPECT_NE(text.out.find("2 missing"), string::npos) << text.out;
}

TEST_F(CliVerify, ReadOnlyLayerCounts) {
  const Outcome outcome = run_commfuse({"verify", "--manifest", small_.manifest(), "--cache-dir", at("empty")},
                                       {{"COMMFUSE_CACHE_READONLY", cache()}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const Outcome again =
      run_commfuse({"precompile", small_.deployment(), "--arch", "sm_90a", "--cache-dir", at("empty"), "--json"},
                   {{"COMMFUSE_CACHE_READONLY", cache()}});
  EXPECT_EQ(again.document().at("compiled"), 0) << again.out;
  EXPECT_FALSE(std::filesystem::exists(at("empty"))) << "nothing was stored, so that nothing needed the folder";
}

TEST_F(CliVerify, WrongUsageAndInputExitWithTwo) {
  std::ofstream(at("wrong.json")) << "{}";
  for (const auto& command : {std::vector<string>{"verify"},
                              {"verify", small_.deployment(), "--manifest", small_.manifest()},
                              {"verify", "--manifest", small_.manifest(), "--arch", "sm_90a"},
                              {"verify", "--manifest", at("wrong.json")},
                              {"verify", "--manifest", at("nothing.json")},
                              {"verify", at("nothing.json"), "--arch", "sm_90a"}}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit_code, 2) << testing::PrintToString(command) << outcome.out;
    EXPECT_TRUE(outcome.document().contains("error"));
  }
}

}  // namespace
}  // namespace commfuse::test
