// Setting up and what is left afterwards: folders, dead jobs, failures one after the other, launchers.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <thread>

#include "commfuse/exchange.hpp"
#include "exchange_processes.hpp"

namespace commfuse::exchange_testing {
namespace {

using std::chrono::milliseconds;

Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

class ExchangeSetUp : public testing::Test {
 protected:
  Folder folder;
  Ranks group{{"directory=" + folder.path().string(), "timeout=5000"}, 2};

  /// Waits until rank 0 has opened its socket.
  void wait_for_files(std::size_t count) const {
    const auto deadline = Clock::now() + std::chrono::seconds(5);
    while (folder.count() < count && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(2));
    ASSERT_EQ(folder.count(), count);
  }
};

TEST_F(ExchangeSetUp, AHundredFailuresLeaveNoDescriptorAndNoFile) {
  const std::string address = free_address();
  const auto fail_in_all_ways = [&](int round) {
    const ExchangeKey key = ExchangeKey::from_secret("a secret for tests only");
    const std::string name = "group " + std::to_string(round);
    for (int rank : {0, 1}) {
      EXPECT_EQ(code_of([&] {
                  (void)make_unix_exchange({name, rank, 2, folder.path(), {}}, Timeout(5));
                }),
                Code::kTimeout);
      EXPECT_EQ(code_of([&] {
                  (void)make_tcp_exchange({name, rank, 2, address, "", key, folder.path(), {}}, Timeout(5));
                }),
                Code::kTimeout);
    }
    // Two of three come: connections, links and hellos are there when it fails.
    if (round % 10 != 0) return;
    for (bool is_tcp : {false, true}) {
      std::vector<std::thread> ranks;
      for (int rank : {0, 1}) {
        ranks.emplace_back([&, rank] {
          EXPECT_NE(code_of([&] {
                      if (is_tcp) {
                        (void)make_tcp_exchange({name, rank, 3, address, "", key, folder.path(), {}}, Timeout(60));
                      } else {
                        (void)make_unix_exchange({name, rank, 3, folder.path(), {}}, Timeout(60));
                      }
                    }),
                    Code::kOk);
        });
      }
      for (auto& rank : ranks) rank.join();
    }
  };
  fail_in_all_ways(0);
  const std::size_t descriptors = open_descriptors();
  for (int round = 1; round <= 100; ++round) fail_in_all_ways(round);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(folder.count(), 0U);
}

TEST_F(ExchangeSetUp, AHundredGroupsThatFailAfterTheyMetLeaveNoDescriptor) {
  const auto meet_and_fail = [&] {
    std::thread other([&] {
      const auto exchange = make_unix_exchange({"group", 1, 2, folder.path(), {}}, Timeout(5000));
      exchange->abandon(Code::kDriver, "as a test", Timeout(1000));
    });
    const auto exchange = make_unix_exchange({"group", 0, 2, folder.path(), {}}, Timeout(5000));
    EXPECT_EQ(code_of([&] { (void)exchange->split(std::vector{0, 1}, Timeout(1000)); }), Code::kDriver);
    other.join();
  };
  meet_and_fail();
  const std::size_t descriptors = open_descriptors();
  for (int round = 0; round < 100; ++round) meet_and_fail();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(folder.count(), 0U);
}

TEST_F(ExchangeSetUp, WhatADeadJobLeftDoesNotDisturbItsRestart) {
  auto dead = group.start(0, {});
  wait_for_files(2);
  dead.send_signal(SIGKILL);
  EXPECT_EQ(dead.finish(), "killed by signal 9\n");
  EXPECT_EQ(folder.count(), 2U) << "a killed process cannot tidy up";
  const auto texts = group.run({"gather:3", "pass"});
  EXPECT_EQ(texts, std::vector<std::string>(2, "done\n"));
  EXPECT_EQ(folder.count(), 0U);
}

TEST_F(ExchangeSetUp, AnotherJobRemovesWhatADeadOneLeftAndNothingOfALiveOne) {
  auto dead = group.start(0, {});
  wait_for_files(2);
  Ranks other = group;
  other.common.emplace_back("group=alive");
  auto alive = other.start(0, {"gather:3"});
  wait_for_files(4);
  dead.send_signal(SIGKILL);
  EXPECT_EQ(dead.finish(), "killed by signal 9\n");
  Ranks third = group;
  third.common.emplace_back("group=third");
  EXPECT_EQ(third.run({"gather:1"}), std::vector<std::string>(2, "done\n"));
  EXPECT_EQ(folder.count(), 2U) << "those of the live one";
  auto partner = other.start(1, {"gather:3"});
  EXPECT_EQ(alive.finish(), "done\n");
  EXPECT_EQ(partner.finish(), "done\n");
  EXPECT_EQ(folder.count(), 0U);
}

TEST_F(ExchangeSetUp, TwoJobsOfOneNameAreBusyAndDoNotDisturbEachOther) {
  auto first = group.start(0, {"gather:3"});
  wait_for_files(2);
  Ranks hasty = group;
  hasty.common.back() = "timeout=200";
  const std::string text = hasty.start(0, {}).finish();
  EXPECT_TRUE(text.starts_with("error Busy [] ")) << text;
  auto second = group.start(1, {"gather:3"});
  EXPECT_EQ(first.finish(), "done\n");
  EXPECT_EQ(second.finish(), "done\n");
}

TEST_F(ExchangeSetUp, AFolderThatOthersMayEnterOrThatIsALinkIsRefused) {
  const auto meet_in = [](const std::filesystem::path& path) {
    return code_of([&] { (void)make_unix_exchange({"group", 0, 2, path, {}}, Timeout(5)); });
  };
  ASSERT_EQ(::chmod(folder.path().c_str(), 0750), 0);
  EXPECT_EQ(meet_in(folder.path()), Code::kInvalidArgument);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
  std::filesystem::create_directory_symlink(folder.path(), folder.path() / "link");
  EXPECT_EQ(meet_in(folder.path() / "link"), Code::kIo);
  EXPECT_EQ(meet_in(folder.path() / "missing" / "deep"), Code::kIo);
  std::ofstream(folder.path() / "file") << "text";
  EXPECT_EQ(meet_in(folder.path() / "file"), Code::kIo);
}

TEST_F(ExchangeSetUp, AFolderIsMadeAndMayHaveALongName) {
  const auto path = folder.path() / std::string(200, 'x');
  group.common.push_back("directory=" + path.string());
  EXPECT_EQ(group.run({"gather:3"}), std::vector<std::string>(2, "done\n"));
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
}

TEST_F(ExchangeSetUp, WrongArgumentsAreRefusedAtOnce) {
  const ExchangeKey key = ExchangeKey::from_secret("a secret for tests only");
  const auto unix_with = [&](const std::string& name, int rank, int size, int timeout) {
    return code_of([&] { (void)make_unix_exchange({name, rank, size, folder.path(), {}}, Timeout(timeout)); });
  };
  EXPECT_EQ(unix_with("", 0, 1, 100), Code::kInvalidArgument);
  EXPECT_EQ(unix_with("group", -1, 2, 100), Code::kInvalidArgument);
  EXPECT_EQ(unix_with("group", 2, 2, 100), Code::kInvalidArgument);
  EXPECT_EQ(unix_with("group", 0, 0, 100), Code::kInvalidArgument);
  EXPECT_EQ(unix_with("group", 0, kMaxExchangeSize + 1, 100), Code::kInvalidArgument);
  EXPECT_EQ(unix_with("group", 0, 1, 0), Code::kInvalidArgument);
  EXPECT_EQ(unix_with("group", 0, 1, 100), Code::kOk);
  for (const char* address : {"", "127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:8x", "::1:80"}) {
    EXPECT_EQ(code_of([&] {
                (void)make_tcp_exchange({"group", 0, 2, address, "", key, {}, {}}, Timeout(50));
              }),
              Code::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(code_of([&] {
              (void)make_tcp_exchange({"group", 0, 2, free_address(), "", {}, {}, {}}, Timeout(50));
            }),
            Code::kInvalidArgument)
      << "without a key";
  // An address of nobody here (a documentation network): cannot be bound.
  EXPECT_EQ(code_of([&] {
              (void)make_tcp_exchange({"group", 0, 2, "192.0.2.77:7000", "", key, {}, {}}, Timeout(50));
            }),
            Code::kIo);
}

class ExchangeLaunch : public ExchangeSetUp {
 protected:
  /// As torchrun starts them, four on a host.
  [[nodiscard]] static std::map<std::string, std::string> torchrun(int rank, int world, int local_size) {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(world)},
            {"LOCAL_RANK", std::to_string(rank % local_size)},
            {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", "29500"},
            {"TORCHELASTIC_RUN_ID", "none"},
            {"TORCHELASTIC_RESTART_COUNT", "0"}};
  }
  [[nodiscard]] std::vector<std::string> run(std::vector<std::map<std::string, std::string>> environments,
                                             const std::vector<std::vector<std::string>>& words) const {
    std::vector<Process> processes;
    for (std::size_t rank = 0; rank < environments.size(); ++rank) {
      environments[rank]["COMMFUSE_EXCHANGE_DIR"] = folder.path().string();
      std::vector<std::string> arguments = {"means=environment", "timeout=5000"};
      const auto& more = words[rank % words.size()];
      arguments.insert(arguments.end(), more.begin(), more.end());
      processes.emplace_back(COMMFUSE_EXCHANGE_PEER, arguments, environments[rank]);
    }
    std::vector<std::string> texts;
    for (auto& process : processes) texts.push_back(process.finish());
    return texts;
  }
};

TEST_F(ExchangeLaunch, RanksOfOneHostMeetOverUnixSockets) {
  std::vector<std::map<std::string, std::string>> environments;
  for (int rank = 0; rank < 4; ++rank) environments.push_back(torchrun(rank, 4, 4));
  EXPECT_EQ(run(environments, {{"gather:5", "pass", "split:0,1/2,3", "gather:6"}}),
            std::vector<std::string>(4, "done\n"));
}

TEST_F(ExchangeLaunch, GroupsWithinAHostMeetAtOnceWithoutTheRestOfTheJob) {
  std::vector<std::map<std::string, std::string>> environments;
  for (int rank = 0; rank < 4; ++rank) environments.push_back(torchrun(rank, 8, 4));
  EXPECT_EQ(run(environments, {{"members=0,1", "gather:5", "pass"},
                               {"members=0,1", "gather:5", "pass"},
                               {"members=3,2", "gather:5", "pass"},
                               {"members=2,3", "gather:5", "pass"}}),
            std::vector<std::string>(4, "done\n"));
}

TEST_F(ExchangeLaunch, RanksOfSeveralHostsMeetOverTcpWhereTheyAreTold) {
  const std::string address = free_address();
  std::vector<std::map<std::string, std::string>> environments;
  for (int rank = 0; rank < 4; ++rank) {
    environments.push_back(torchrun(rank, 4, 2));
    environments.back()["COMMFUSE_EXCHANGE_KEY"] = "a secret for tests only";
    // Two ways to say the same.
    if (rank < 2) {
      environments.back()["COMMFUSE_EXCHANGE_ADDRESS"] = address;
    } else {
      environments.back()["COMMFUSE_EXCHANGE_PORT"] = address.substr(address.find(':') + 1);
    }
  }
  EXPECT_EQ(run(environments, {{"gather:5", "split:0,1/2,3", "gather:6", "pass"}}),
            std::vector<std::string>(4, "done\n"));
  environments[0].erase("COMMFUSE_EXCHANGE_KEY");
  const auto no_key = run({environments[0]}, {{"gather:5"}});
  EXPECT_TRUE(no_key[0].starts_with("error InvalidArgument [] ")) << no_key[0];
  EXPECT_NE(no_key[0].find("COMMFUSE_EXCHANGE_KEY"), std::string::npos) << no_key[0];
  environments[0].erase("COMMFUSE_EXCHANGE_ADDRESS");
  const auto no_address = run({environments[0]}, {{"gather:5"}});
  EXPECT_NE(no_address[0].find("COMMFUSE_EXCHANGE_ADDRESS"), std::string::npos) << no_address[0];
}

#ifdef COMMFUSE_MPIRUN
std::string mpirun(int ranks, const std::string& program, const std::vector<std::string>& words) {
  std::vector<std::string> arguments = {"--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks),
                                        program};
  arguments.insert(arguments.end(), words.begin(), words.end());
  return Process(COMMFUSE_MPIRUN, arguments).finish();
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(ExchangeLaunch, RanksStartedByMpirunMeetOverUnixSockets) {
  const std::string text =
      mpirun(4, COMMFUSE_EXCHANGE_PEER,
             {"means=environment", "timeout=10000", "gather:5", "pass", "split:0,2/1,3", "gather:2"});
  EXPECT_EQ(count_of(text, "done\n"), 4U) << text;
}

TEST_F(ExchangeLaunch, RanksMeetOverMpi) {
  const std::string text = mpirun(4, COMMFUSE_EXCHANGE_MPI_PEER,
                                  {"means=mpi", "timeout=10000", "gather:0", "gather:1000", "gather:200000", "barrier",
                                   "pass", "agree:same", "split:0,2/1,3", "gather:2", "pass"});
  EXPECT_EQ(count_of(text, "done\n"), 4U) << text;
}

TEST_F(ExchangeLaunch, ARankThatIsLateOverMpiIsNamedWithinTheTimeout) {
  const std::string text =
      mpirun(3, COMMFUSE_EXCHANGE_MPI_PEER, {"means=mpi", "timeout=500", "gather:1", "late:2", "gather:1"});
  EXPECT_EQ(count_of(text, "error Timeout [2] "), 2U) << text;
}
#endif

}  // namespace
}  // namespace commfuse::exchange_testing
