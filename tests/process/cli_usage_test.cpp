// The command line itself: help, wrong usage, wrong input.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "process/cli_process.hpp"

namespace commfuse::test {
namespace {

using std::string;

const string kExamples = COMMFUSE_SOURCE_DIR "/examples/deployments/";
const string kLlama = kExamples + "llama-3.1-70b-tp8.json";
const std::vector<string> kCommands = {"precompile", "list",  "show", "explain", "doctor", "selftest", "bench",
                                       "verify",     "stats", "gc",   "clean",   "pack",   "unpack",   "diff"};

TEST(CliUsage, HelpOfEveryCommandShowsAnExample) {
  for (const string& command : kCommands) {
    const Outcome outcome = run_commfuse({command, "--help"});
    EXPECT_EQ(outcome.exit_code, 0) << command;
    EXPECT_NE(outcome.out.find("Example:\n  commfuse " + command), string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("--json"), string::npos) << command;
  }
  const Outcome outcome = run_commfuse({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.out.find("Exit codes"), string::npos);
}

TEST(CliUsage, WrongUsageExitsWithTwoAndSaysWhereToLook) {
  const std::vector<std::vector<string>> wrong = {
      {},
      {"precompiel"},
      {"precompile"},
      {"precompile", kLlama, "--jobs", "-1"},
      {"precompile", kLlama, "--jobs", "many"},
      {"precompile", kLlama, "--unknown"},
      {"precompile", kLlama, "--arch"},
      {"show"},
      {"show", "not-a-key"},
      {"show", "ab", "--source", "--log"},
      {"explain", kLlama},
      {"explain", kLlama, "--tokens", "-5"},
      {"explain", kLlama, "--tokens", "99999999999999999999"},
      {"list", "extra"},
  };
  for (const auto& arguments : wrong) {
    const Outcome outcome = run_commfuse(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_TRUE(outcome.err.starts_with("commfuse: ")) << outcome.err;
    EXPECT_NE(outcome.err.find("--help"), string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(CliUsage, WrongUsageWithJsonIsADocumentToo) {
  const Outcome outcome = run_commfuse({"explain", kLlama, "--json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.document().at("error").at("code"), "InvalidArgument");
}

TEST(CliUsage, WrongArchitectureExitsWithTwo) {
  const Outcome outcome = run_commfuse({"precompile", kLlama, "--arch", "sm_90a,sm_75", "--json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("sm_75"), string::npos) << outcome.err;
  EXPECT_EQ(outcome.document().at("error").at("code"), "InvalidArgument");
}

TEST(CliUsage, WrongDeploymentExitsWithTwoAndNamesThePlace) {
  const TemporaryFolder folder;
  const string file = (folder.path() / "wrong.json").string();
  std::ofstream(file) << R"({"name":"n","world_size":8,"hiden_size":8192,"dtype":"bf16","max_tokens":64,)"
                      << R"("operations":[{"op":"all_reduce","patterns":["all_reduce"]}]})";
  for (const std::vector<string>& arguments : {std::vector<string>{"precompile", file, "--arch", "sm_90a", "--json"},
                                               {"explain", file, "--tokens", "1", "--json"}}) {
    const Outcome outcome = run_commfuse(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find("/hiden_size: unknown key"), string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("did you mean \"hidden_size\"?"), string::npos) << outcome.err;
    const auto error = outcome.document().at("error");
    EXPECT_EQ(error.at("code"), "InvalidInput");
    EXPECT_NE(error.at("cause").get<string>().find("/hiden_size"), string::npos);
  }
}

TEST(CliUsage, MissingDeploymentExitsWithTwo) {
  const Outcome outcome = run_commfuse({"precompile", "/nowhere/at-all.json", "--arch", "sm_90a"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("/nowhere/at-all.json"), string::npos) << outcome.err;
}

TEST(CliUsage, NoArchitectureAndNoGpuIsAClearError) {
  const Outcome outcome = run_commfuse({"precompile", kLlama}, {{"COMMFUSE_LIBCUDA", "/nowhere/libcuda.so"}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("--arch sm_90a"), string::npos) << outcome.err;
}

TEST(CliUsage, FullDiskIsNotSuccess) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const string command = string("exec '") + COMMFUSE_COMMAND + "' doctor >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace commfuse::test
