#include "runtime/env.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "jit_support.hpp"

namespace commfuse {
namespace {

TEST(Env, ReadsTextNumbersAndSwitches) {
  const test::ScopedVariable jobs("COMMFUSE_JOBS", "3");
  const test::ScopedVariable ignore("COMMFUSE_IGNORE_TOOLKIT", "1");
  const test::ScopedVariable home("CUDA_HOME", "/opt/cuda");
  const Env read = Env::from_process();
  EXPECT_EQ(read.jobs, 3);
  EXPECT_TRUE(read.ignore_toolkit);
  EXPECT_EQ(read.cuda_home, "/opt/cuda");
}

TEST(Env, TakesZeroAndEmptyAsOff) {
  for (const char* off : {"", "0", "no", "off", "false"}) {
    const test::ScopedVariable ignore("COMMFUSE_IGNORE_TOOLKIT", off);
    EXPECT_FALSE(Env::from_process().ignore_toolkit) << off;
  }
}

TEST(Env, IgnoresANumberThatIsNoneWithAWarning) {
  for (const char* wrong : {"many", "-1", "4x", "99999999999999"}) {
    const test::LogCapture capture;
    const test::ScopedVariable jobs("COMMFUSE_JOBS", wrong);
    EXPECT_EQ(Env::from_process().jobs, 0) << wrong;
    ASSERT_EQ(capture.count(LogLevel::kWarning), 1) << wrong;
    EXPECT_NE(capture.messages()[0].second.find("COMMFUSE_JOBS='" + std::string(wrong)), std::string::npos);
  }
}

TEST(Env, ListsEveryVariableWithItsMeaning) {
  const test::ScopedVariable jobs("COMMFUSE_JOBS", "7");
  const std::vector<EnvVariable> rows = list_environment();
  const auto row = [&](std::string_view name) {
    return std::find_if(rows.begin(), rows.end(), [&](const EnvVariable& r) { return r.name == name; });
  };
  for (const EnvVariable& variable : rows) EXPECT_GT(variable.meaning.size(), 10u) << variable.name;
  for (const char* name : {"COMMFUSE_CACHE_DIR", "COMMFUSE_CACHE_READONLY", "COMMFUSE_NVRTC", "COMMFUSE_LIBCUDA",
                           "CUDA_HOME", "COMMFUSE_IGNORE_TOOLKIT", "CUDA_MODULE_LOADING"}) {
    EXPECT_NE(row(name), rows.end()) << name;
  }
  ASSERT_NE(row("COMMFUSE_JOBS"), rows.end());
  EXPECT_TRUE(row("COMMFUSE_JOBS")->set);
  EXPECT_EQ(row("COMMFUSE_JOBS")->value, "7");
  EXPECT_FALSE(row("COMMFUSE_CACHE_DIR")->set);
}

TEST(Env, ListsThatASecretIsSetButNotTheSecret) {
  const test::ScopedVariable secret("COMMFUSE_EXCHANGE_KEY", "hunter2");
  bool found = false;
  for (const EnvVariable& variable : list_environment()) {
    EXPECT_EQ(variable.value.find("hunter2"), std::string::npos) << variable.name;
    found = found || (variable.name == "COMMFUSE_EXCHANGE_KEY" && variable.set);
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace commfuse
