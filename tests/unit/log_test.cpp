#include "runtime/log.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "jit_support.hpp"

namespace commfuse {
namespace {

TEST(Log, GoesToTheSinkWithItsLevelAndNowhereWithoutOne) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log(LogLevel::kError, "nobody listens");
  {
    test::LogCapture capture;
    log(LogLevel::kWarning, "somebody listens");
    ASSERT_EQ(capture.messages().size(), 1u);
    EXPECT_EQ(capture.messages()[0], std::make_pair(LogLevel::kWarning, std::string("somebody listens")));
  }
  log(LogLevel::kError, "nobody listens any more");
  EXPECT_EQ(testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(log_enabled());
}

TEST(Log, SurvivesASinkThatThrows) {
  int calls = 0;
  set_log_sink([&](LogLevel, std::string_view) {
    ++calls;
    throw std::runtime_error("the sink fails");
  });
  log(LogLevel::kInfo, "one");
  log(LogLevel::kInfo, "two");
  set_log_sink(nullptr);
  EXPECT_EQ(calls, 2);
}

TEST(Log, LetsASinkReplaceItselfAndLog) {
  std::vector<std::string> heard;
  set_log_sink([&heard](LogLevel, std::string_view message) {
    heard.push_back("first: " + std::string(message));
    set_log_sink([&heard](LogLevel, std::string_view text) { heard.push_back("second: " + std::string(text)); });
    log(LogLevel::kInfo, "from within");
  });
  log(LogLevel::kInfo, "a");
  set_log_sink(nullptr);
  EXPECT_EQ(heard, (std::vector<std::string>{"first: a", "second: from within"}));
}

TEST(Log, CallsTheSinkFromOneThreadAtATime) {
  std::atomic<int> inside{0};
  std::atomic<bool> overlapped{false};
  int total = 0;  // guarded by the log alone: the thread sanitizer would see a race
  set_log_sink([&](LogLevel, std::string_view) {
    if (++inside > 1) overlapped = true;
    ++total;
    --inside;
  });
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 500; ++i) log(LogLevel::kInfo, "message");
      });
    }
  }
  set_log_sink(nullptr);
  EXPECT_FALSE(overlapped);
  EXPECT_EQ(total, 8 * 500);
}

}  // namespace
}  // namespace commfuse
