// Groups of real processes. The test program starts itself once for each rank, which then does one task. The driver is
// the stand-in, if the program was built with one, else the real one; before it stands one that makes calls fail.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"

namespace commfuse {

inline constexpr std::uint64_t kRotationBytes = 4096;

/// What a rank is started with.
struct RankArguments {
  int rank = 0;
  int size = 1;
  std::string group;
  std::filesystem::path directory;
  std::string task;
  MemoryKind kind = MemoryKind::kAuto;
  int times = 1;

  [[nodiscard]] std::unique_ptr<Exchange> meet() const;
  [[nodiscard]] static WorkspaceOptions options();
};

/// One rank's part of a test. What it prints is what the test sees; an exception is printed as "error CODE TEXT".
using RankTask = void (*)(const RankArguments&);
/// At namespace scope, before main.
struct RankTaskEntry {
  RankTaskEntry(const char* name, RankTask task);
};

[[nodiscard]] std::ptrdiff_t open_descriptors();
/// In a task: ends it with the line that shows what does not hold.
#define COMMFUSE_REQUIRE(condition)                               \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return;                                                     \
    }                                                             \
  } while (false)

/// "error CODE TEXT".
[[nodiscard]] std::string text_of(const Error& error);

struct RankSetup {
  std::vector<std::string> environment = {};
  std::string wrapper = {};  ///< a command that starts it
};

class ProcessGroups : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// What each rank printed; ends when all have ended, which is checked to be in time.
  std::vector<std::string> run(const std::string& task, const std::vector<RankSetup>& ranks,
                               MemoryKind kind = MemoryKind::kAuto, int times = 1);
  static void expect_all(const std::vector<std::string>& texts, const std::string& expected);
  /// All alike, with these parts in it, and nothing left behind.
  static void expect_alike(const std::vector<std::string>& texts, const std::vector<std::string>& parts);

  std::filesystem::path directory_;
  std::chrono::seconds deadline_{30};
};

}  // namespace commfuse
