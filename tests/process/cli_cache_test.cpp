// precompile, list, show, explain and doctor over one cache. Needs NVRTC; needs no GPU and no driver.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "process/cli_process.hpp"

namespace commfuse::test {
namespace {

using nlohmann::json;
using std::string;

/// A deployment of few kernels, compiled once for all tests of this file.
class CliCache : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    std::ofstream(file()) << R"({"name":"small","world_size":4,"hidden_size":2880,"dtype":"bf16","max_tokens":64,)"
                          << R"("operations":[{"op":"all_reduce","patterns":["all_reduce"]}]})";
    first_ = run_commfuse({"precompile", file(), "--arch", "sm_90a", "--cache-dir", cache(), "--json"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static string file() { return (folder_->path() / "small.json").string(); }
  static string cache() { return (folder_->path() / "cache").string(); }
  static string some_key() { return first_.document().at("deployments").at(0).at("reports").at(0).at("key"); }

  static std::unique_ptr<TemporaryFolder> folder_;
  static Outcome first_;
};

std::unique_ptr<TemporaryFolder> CliCache::folder_;
Outcome CliCache::first_;

TEST_F(CliCache, FirstPrecompileCompilesEveryKernel) {
  ASSERT_EQ(first_.exit_code, 0) << first_.err;
  EXPECT_EQ(first_.err, "") << "nothing to say without a terminal";
  const json document = first_.document();
  const int kernels = document.at("kernels");
  EXPECT_GE(kernels, 1);
  EXPECT_EQ(document.at("compiled"), kernels);
  EXPECT_EQ(document.at("hits"), 0);
  EXPECT_EQ(document.at("failed"), 0);
  EXPECT_GE(document.at("nvrtc_calls").get<int>(), kernels);
  EXPECT_EQ(document.at("cache_dir"), cache());
  EXPECT_EQ(document.at("deployments").at(0).at("reports").size(), static_cast<std::size_t>(kernels));
}

TEST_F(CliCache, SecondPrecompileMakesNoCallToNvrtcAndSaysSo) {
  const Outcome again = run_commfuse({"precompile", file(), "--arch", "sm_90a", "--cache-dir", cache(), "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.document().at("compiled"), 0);
  EXPECT_EQ(again.document().at("hits"), first_.document().at("kernels"));
  EXPECT_EQ(again.document().at("nvrtc_calls"), 0);
  const Outcome text = run_commfuse({"precompile", file(), "--arch", "sm_90a"}, {{"COMMFUSE_CACHE_DIR", cache()}});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("0 compiled"), string::npos) << text.out;
  EXPECT_NE(text.out.find("0 NVRTC calls"), string::npos) << text.out;
}

TEST_F(CliCache, HoldsCubinsThatAreElfFiles) {
  int cubins = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache())) {
    if (entry.path().extension() != ".cubin") continue;
    ++cubins;
    string start(4, '\0');
    std::ifstream(entry.path()).read(start.data(), 4);
    EXPECT_EQ(start,
              "\x7f"
              "ELF");
  }
  EXPECT_EQ(cubins, first_.document().at("kernels"));
}

TEST_F(CliCache, ListShowsEveryKernel) {
  const Outcome outcome = run_commfuse({"list", "--cache-dir", cache(), "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json entries = outcome.document().at("entries");
  std::set<string> listed;
  for (const json& entry : entries) {
    listed.insert(entry.at("key").get<string>());
    EXPECT_EQ(entry.at("arch"), "sm_90a");
    EXPECT_GT(entry.at("cubin_bytes").get<int>(), 0);
  }
  std::set<string> compiled;
  const json document = first_.document();
  for (const json& report : document.at("deployments").at(0).at("reports")) {
    compiled.insert(report.at("key").get<string>());
  }
  EXPECT_EQ(listed, compiled);
  const Outcome text = run_commfuse({"list", "--cache-dir", cache()});
  EXPECT_NE(text.out.find(some_key().substr(0, 12)), string::npos) << text.out;
}

TEST_F(CliCache, ListOfNothingIsNoError) {
  const Outcome outcome = run_commfuse({"list", "--cache-dir", (folder_->path() / "nothing").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("0 kernels"), string::npos) << outcome.out;
  EXPECT_FALSE(std::filesystem::exists(folder_->path() / "nothing")) << "listing made the folder";
}

TEST_F(CliCache, ShowTakesTheStartOfAKey) {
  const Outcome outcome = run_commfuse({"show", some_key().substr(0, 10), "--cache-dir", cache(), "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = outcome.document();
  EXPECT_EQ(document.at("key"), some_key());
  EXPECT_EQ(document.at("signature").at("arch"), "sm_90a");
  EXPECT_NE(document.at("source").get<string>().find("extern \"C\""), string::npos);
  EXPECT_TRUE(document.contains("log"));
  const Outcome source = run_commfuse({"show", some_key(), "--source", "--cache-dir", cache()});
  EXPECT_EQ(source.out, document.at("source").get<string>());
  EXPECT_EQ(source.err, "");
  const Outcome signature = run_commfuse({"show", some_key(), "--signature", "--cache-dir", cache()});
  EXPECT_EQ(json::parse(signature.out), document.at("signature"));
  const Outcome text = run_commfuse({"show", some_key(), "--cache-dir", cache()});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find(some_key()), string::npos);
}

TEST_F(CliCache, ShowOfAnUnknownKeyExitsWithTwo) {
  const Outcome outcome = run_commfuse({"show", string(64, '0'), "--cache-dir", cache()});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("commfuse list"), string::npos) << outcome.err;
}

TEST_F(CliCache, DamagedEntryIsNamedAndReplaced) {
  const TemporaryFolder copy;
  const string copied = (copy.path() / "cache").string();
  std::filesystem::copy(cache(), copied, std::filesystem::copy_options::recursive);
  const string key = some_key();
  std::filesystem::resize_file(std::filesystem::path(copied) / key.substr(0, 2) / (key + ".json"), 10);
  const Outcome list = run_commfuse({"list", "--cache-dir", copied});
  EXPECT_NE(list.out.find("damaged"), string::npos) << list.out;
  EXPECT_EQ(run_commfuse({"show", key, "--cache-dir", copied}).exit_code, 1);
  const Outcome again = run_commfuse({"precompile", file(), "--arch", "sm_90a", "--cache-dir", copied, "--json"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.document().at("compiled"), 1);
  EXPECT_EQ(run_commfuse({"show", key, "--cache-dir", copied}).exit_code, 0);
}

TEST_F(CliCache, UnusableCacheFolderIsAWarning) {
  // A file where the folder should be: stays unusable for root, unlike a permission.
  const string blocked = (folder_->path() / "blocked").string();
  std::ofstream(blocked) << "in the way";
  const Outcome outcome = run_commfuse({"precompile", file(), "--arch", "sm_90a", "--cache-dir", blocked, "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.document().at("failed"), 0);
  EXPECT_EQ(outcome.document().at("compiled"), first_.document().at("kernels"));
  EXPECT_NE(outcome.err.find("warning"), string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("blocked"), string::npos) << outcome.err;
}

TEST_F(CliCache, NoCompilerIsAClearErrorButCachedKernelsNeedNone) {
  const std::map<string, string> hidden = {{"COMMFUSE_NVRTC", "/nowhere/libnvrtc.so"}};
  const TemporaryFolder empty;
  const Outcome outcome =
      run_commfuse({"precompile", file(), "--arch", "sm_90a", "--cache-dir", empty.path().string()}, hidden);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE((outcome.err + outcome.out).find("/nowhere/libnvrtc.so"), string::npos) << outcome.err;
}

TEST_F(CliCache, ExplainGivesAReasonForEveryNumberOfTokens) {
  const Outcome outcome =
      run_commfuse({"explain", file(), "--tokens", "0,1,4096", "--arch", "sm_90a", "--ranks-on-device", "4", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json plans = outcome.document().at("plans");
  ASSERT_EQ(plans.size(), 3U);
  EXPECT_EQ(plans.at(0).at("blocks"), 0);
  for (const json& plan : plans) EXPECT_NE(plan.at("reason"), "");
  EXPECT_GT(plans.at(2).at("blocks").get<int>(), plans.at(1).at("blocks").get<int>());
  const Outcome capped =
      run_commfuse({"explain", file(), "--tokens", "4096", "--arch", "sm_90a", "--max-blocks", "8", "--json"});
  EXPECT_EQ(capped.document().at("plans").at(0).at("blocks"), 8);
  EXPECT_EQ(run_commfuse({"explain", file(), "--tokens", "16", "--arch", "sm_90a"}).exit_code, 0);
}

TEST_F(CliCache, DoctorTellsWhatIsHereAndWhatIsMissing) {
  const Outcome outcome = run_commfuse({"doctor", "--cache-dir", cache(), "--json"},
                                       {{"COMMFUSE_LIBCUDA", "/nowhere/libcuda.so"}, {"COMMFUSE_JOBS", "3"}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = outcome.document();
  EXPECT_EQ(document.at("can_compile"), true);
  EXPECT_EQ(document.at("can_launch"), false);
  EXPECT_NE(document.at("driver").at("problem").get<string>().find("/nowhere/libcuda.so"), string::npos);
  EXPECT_EQ(document.at("cache").at("dir"), cache());
  EXPECT_EQ(document.at("cache").at("kernels"), first_.document().at("kernels"));
  EXPECT_EQ(document.at("cache").at("usable"), true);
  const json& variables = document.at("environment");
  const auto jobs = std::find_if(variables.begin(), variables.end(),
                                 [](const json& each) { return each.at("name") == "COMMFUSE_JOBS"; });
  ASSERT_NE(jobs, variables.end());
  EXPECT_EQ(jobs->at("value"), "3");
  EXPECT_NE(jobs->at("meaning"), "");
  EXPECT_NE(run_commfuse({"doctor"}).out.find("COMMFUSE_CACHE_DIR"), string::npos);
}

}  // namespace
}  // namespace commfuse::test
