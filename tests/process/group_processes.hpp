// Groups of real processes on the stand-in for the driver. The test program starts itself once for each rank, which
// then does one task.
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

/// Objects of the driver that this process has not given back, and its open descriptors.
[[nodiscard]] int live_objects();
[[nodiscard]] std::ptrdiff_t open_descriptors();
/// Device memory of this process that is in use.
[[nodiscard]] std::size_t device_bytes();
/// Calls that gave back to the driver what was not there.
[[nodiscard]] int wrong_calls();
/// See commfuse_test_limit_memory.
void limit_memory(std::size_t bytes);
/// See commfuse_test_end_context.
void end_context();
/// See commfuse_test_allocate.
[[nodiscard]] void* allocate_as(const char* source, std::size_t bytes);
/// Addresses of all ranks' rotation buffers, as this rank's kernels would be told them.
[[nodiscard]] std::vector<volatile std::uint32_t*> buffers_of(Workspace& workspace);
/// What is wrong with the memory of the group, which must be empty; empty if all ranks reach all of it. Collective.
[[nodiscard]] std::string use(Exchange& exchange, Workspace& workspace);
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
};

}  // namespace commfuse
