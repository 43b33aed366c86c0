// Groups of real processes: what they gather, and what each hears when one of them is missing, dies, stops or differs.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "commfuse/exchange.hpp"
#include "exchange_processes.hpp"

namespace commfuse::exchange_testing {
namespace {

using std::chrono::milliseconds;

/// Over each means, with the arguments that every rank needs for it.
class ExchangeGroup : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] Ranks ranks(int size, int timeout = 10000) const {
    Ranks group;
    group.size = size;
    group.common = {"means=" + GetParam(), "directory=" + folder.path().string(), "address=" + address,
                    "timeout=" + std::to_string(timeout)};
    return group;
  }
  Folder folder;
  std::string address = free_address();
};

INSTANTIATE_TEST_SUITE_P(Means, ExchangeGroup, testing::Values("unix", "tcp"),
                         [](const auto& means) { return means.param; });

void expect_all_done(const std::vector<std::string>& texts) {
  for (std::size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank], "done\n") << "rank " << rank;
}

TEST_P(ExchangeGroup, GathersBlobsOfDifferentLengthsAndPassesFilesAmongTwoToSixteenProcesses) {
  for (int size : {1, 2, 3, 8, 16}) {
    expect_all_done(ranks(size).run({"gather:0", "gather:1000", "barrier", "pass", "gather:7", "pass", "agree:same"}));
    EXPECT_EQ(folder.count(), 0U) << "files left behind by " << size;
  }
}

TEST_P(ExchangeGroup, GathersBlobsOfTheLargestSize) {
  const std::string bytes = std::to_string((kMaxBlobBytes - 100) / 2);
  expect_all_done(ranks(3).run({"gather:" + bytes, "gather:" + bytes}));
}

TEST_P(ExchangeGroup, GroupsOfEqualSizeThatSplitAtTheSameTimeNeverCross) {
  expect_all_done(ranks(4).run({"split:0,1/2,3", "gather:10", "pass", "barrier", "gather:3"}));
  expect_all_done(ranks(8).run({"split:0,2,4,6/1,3,5,7", "gather:10", "split:0,3/1,2", "gather:5", "pass"}));
  EXPECT_EQ(folder.count(), 0U);
}

TEST_P(ExchangeGroup, WaitsForRanksThatComeLate) {
  const Ranks group = ranks(3);
  auto second = group.start(1, {"gather:1"});
  std::this_thread::sleep_for(milliseconds(200));
  auto first = group.start(0, {"gather:1"});
  std::this_thread::sleep_for(milliseconds(200));
  auto third = group.start(2, {"sleep:200", "gather:1"});
  expect_all_done({first.finish(), second.finish(), third.finish()});
}

TEST_P(ExchangeGroup, NamesAMissingRankToAllOthersWithinTheTimeout) {
  const Ranks group = ranks(4, 1200);
  std::vector<Process> processes;
  for (int rank : {0, 1, 3}) processes.push_back(group.start(rank, {"gather:1"}));
  std::vector<std::string> texts;
  for (auto& process : processes) texts.push_back(process.finish());
  EXPECT_TRUE(texts[0].starts_with("error Timeout [2] ")) << texts[0];
  EXPECT_NE(texts[0].find("rank 2 did not come "), std::string::npos) << texts[0];
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i], texts[0]);
    EXPECT_LT(processes[i].lifetime(), milliseconds(3000));
  }
  EXPECT_EQ(folder.count(), 0U);
}

TEST_P(ExchangeGroup, NamesRankZeroWhereItNeverComes) {
  const std::string text = ranks(2, 300).start(1, {"gather:1"}).finish();
  EXPECT_TRUE(text.starts_with("error Timeout [0] ")) << text;
}

TEST_P(ExchangeGroup, AKilledRankIsNamedToAllOthersLongBeforeTheTimeout) {
  for (int victim : {0, 2}) {
    const Ranks group = ranks(4);
    std::vector<Process> processes;
    for (int rank = 0; rank < 4; ++rank) {
      processes.push_back(group.start(rank, rank == victim ? std::vector<std::string>{"gather:1", "sleep:100", "kill"}
                                                           : std::vector<std::string>{"gather:1", "gather:1"}));
    }
    for (int rank = 0; rank < 4; ++rank) {
      const std::string text = processes[static_cast<std::size_t>(rank)].finish();
      if (rank == victim) continue;
      EXPECT_TRUE(text.starts_with("error Io [" + std::to_string(victim) + "] ")) << "rank " << rank << ": " << text;
      EXPECT_LT(processes[static_cast<std::size_t>(rank)].lifetime(), milliseconds(3000));
    }
  }
}

TEST_P(ExchangeGroup, AStoppedRankIsNamedToAllOthersWithinTheTimeout) {
  for (int victim : {0, 1}) {
    const Ranks group = ranks(3, 1500);
    std::vector<Process> processes;
    for (int rank = 0; rank < 3; ++rank) {
      processes.push_back(group.start(rank, rank == victim ? std::vector<std::string>{"gather:1", "stop"}
                                                           : std::vector<std::string>{"gather:1", "gather:1"}));
    }
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const std::string text = processes[static_cast<std::size_t>(rank)].finish();
      EXPECT_TRUE(text.starts_with("error Timeout [" + std::to_string(victim) + "] "))
          << "rank " << rank << ": " << text;
      EXPECT_LT(processes[static_cast<std::size_t>(rank)].lifetime(), milliseconds(4500));
    }
  }
}

TEST_P(ExchangeGroup, ARankThatDiesDuringSetUpIsNamedAtOnce) {
  const Ranks group = ranks(3);
  auto first = group.start(0, {"gather:1"});
  auto victim = group.start(1, {"gather:1"});
  std::this_thread::sleep_for(milliseconds(400));
  victim.send_signal(SIGKILL);
  const std::string text = first.finish();
  EXPECT_TRUE(text.starts_with("error Io [1] ")) << text;
  EXPECT_LT(first.lifetime(), milliseconds(3000));
  EXPECT_EQ(folder.count(), 0U);
}

TEST_P(ExchangeGroup, AShorterTimeoutOfOneRankEndsTheCallOfAll) {
  Ranks patient = ranks(3, 20000);
  Ranks hasty = ranks(3, 1200);
  auto first = patient.start(0, {"gather:1"});
  auto second = hasty.start(1, {"gather:1"});
  const std::string text = first.finish();
  EXPECT_TRUE(text.starts_with("error Timeout [2] ")) << text;
  EXPECT_EQ(second.finish(), text);
}

TEST_P(ExchangeGroup, DifferentCallsAreAMismatchOnEveryRank) {
  const Ranks group = ranks(3);
  auto first = group.start(0, {"gather:1"});
  auto second = group.start(1, {"barrier"});
  auto third = group.start(2, {"gather:1"});
  const std::string text = first.finish();
  EXPECT_TRUE(text.starts_with("error Mismatch [1] ")) << text;
  EXPECT_EQ(second.finish(), text);
  EXPECT_EQ(third.finish(), text);
}

TEST_P(ExchangeGroup, AgreementNamesTheRankThatDiffersOnEveryRank) {
  const Ranks group = ranks(4);
  std::vector<Process> processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.push_back(group.start(rank, {std::string("agree:hidden size ") + (rank == 2 ? "4096" : "8192")}));
  }
  std::vector<std::string> texts;
  for (auto& process : processes) texts.push_back(process.finish());
  EXPECT_TRUE(texts[0].starts_with("error Mismatch [2] ")) << texts[0];
  EXPECT_NE(texts[0].find("'hidden size 4096'"), std::string::npos) << texts[0];
  EXPECT_NE(texts[0].find("'hidden size 8192'"), std::string::npos) << texts[0];
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
}

TEST_P(ExchangeGroup, ARankThatGivesUpTellsTheOthersWhy) {
  for (int quitter : {0, 1}) {
    const Ranks group = ranks(3);
    std::vector<Process> processes;
    for (int rank = 0; rank < 3; ++rank) {
      processes.push_back(group.start(
          rank, rank == quitter ? std::vector<std::string>{"abandon:cannot export memory (801)", "sleep:100"}
                                : std::vector<std::string>{"gather:1"}));
    }
    for (int rank = 0; rank < 3; ++rank) {
      const std::string text = processes[static_cast<std::size_t>(rank)].finish();
      if (rank == quitter) continue;
      EXPECT_TRUE(text.starts_with("error Driver [" + std::to_string(quitter) + "] ")) << text;
      EXPECT_NE(text.find("cannot export memory (801)"), std::string::npos) << text;
    }
  }
}

TEST_P(ExchangeGroup, ABlobThatIsTooLargeFailsOnEveryRank) {
  const Ranks group = ranks(2);
  auto first = group.start(0, {"gather:1"});
  auto second = group.start(1, {"oversized"});
  const std::string text = first.finish();
  EXPECT_TRUE(text.starts_with("error InvalidArgument [1] ")) << text;
  EXPECT_TRUE(second.finish().starts_with("error InvalidArgument [1] "));
}

TEST_P(ExchangeGroup, TwoProcessesOfOneRankAreAMismatchOnEveryRank) {
  const Ranks group = ranks(3);
  std::vector<Process> processes;
  for (int rank : {0, 1, 1}) processes.push_back(group.start(rank, {"gather:1"}));
  for (auto& process : processes) {
    const std::string text = process.finish();
    EXPECT_TRUE(text.starts_with("error Mismatch [1] ")) << text;
    EXPECT_NE(text.find("two processes come as rank 1"), std::string::npos) << text;
  }
}

TEST_P(ExchangeGroup, AnotherSizeOnOneRankIsAMismatchOnEveryRank) {
  const Ranks small = ranks(3), large = ranks(4);
  auto first = small.start(0, {"gather:1"});
  auto second = small.start(1, {"gather:1"});
  std::this_thread::sleep_for(milliseconds(200));
  auto third = large.start(3, {"gather:1"});
  for (Process* process : {&first, &second, &third}) {
    const std::string text = process->finish();
    EXPECT_TRUE(text.starts_with("error Mismatch [3] ")) << text;
    EXPECT_NE(text.find("started for 4 ranks, rank 0 for 3"), std::string::npos) << text;
  }
}

TEST_P(ExchangeGroup, MembersThatDisagreeAboutASplitAreNamedOnEveryRank) {
  const Ranks group = ranks(3);
  auto first = group.start(0, {"split:0,1"});
  auto second = group.start(1, {"split:1,2"});
  auto third = group.start(2, {"split:1,2"});
  const std::string text = first.finish();
  EXPECT_TRUE(text.starts_with("error Mismatch [0,1] ")) << text;
  EXPECT_EQ(second.finish(), text);
  EXPECT_EQ(third.finish(), text);
}

TEST(ExchangeHosts, DescriptorsGoOnlyAmongRanksOfOneHost) {
  const Folder folder;
  Ranks group;
  group.size = 4;
  group.common = {"means=tcp", "address=" + free_address(), "directory=" + folder.path().string(), "timeout=10000"};
  std::vector<Process> processes;
  for (int rank = 0; rank < 4; ++rank) {
    Ranks placed = group;
    placed.common.push_back(rank < 2 ? "host=left" : "host=right");
    processes.push_back(placed.start(rank, {"pass_unsupported:1,2", "gather:1", "split:0,1/2,3", "pass"}));
  }
  for (auto& process : processes) EXPECT_EQ(process.finish(), "done\n");
}

TEST(ExchangeGroups, TwoGroupsOfOneJobMeetAtTheSameTimeInOneFolder) {
  const Folder folder;
  std::vector<Process> processes;
  for (int round = 0; round < 3; ++round) {
    for (int world_rank = 0; world_rank < 4; ++world_rank) {
      const std::vector<int> members = world_rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
      Ranks group;
      group.common = {"group=" + group_name("job", members) + std::to_string(round),
                      "directory=" + folder.path().string(), "timeout=10000"};
      processes.push_back(group.start(world_rank % 2, {"gather:10", "pass", "gather:20"}));
    }
  }
  for (auto& process : processes) EXPECT_EQ(process.finish(), "done\n");
}

TEST(ExchangeGroups, TwoGroupsThatWereGivenTheSamePortMeetOneAfterTheOther) {
  const std::string address = free_address();
  const Folder folder;
  std::vector<Process> processes;
  for (int world_rank = 0; world_rank < 4; ++world_rank) {
    Ranks group;
    group.common = {"means=tcp", "address=" + address, world_rank < 2 ? "group=a" : "group=b",
                    "directory=" + folder.path().string(), "timeout=10000"};
    processes.push_back(group.start(world_rank % 2, {"gather:10", "pass"}));
  }
  for (auto& process : processes) EXPECT_EQ(process.finish(), "done\n");
}

}  // namespace
}  // namespace commfuse::exchange_testing
