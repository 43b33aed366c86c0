#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "commfuse/exchange.hpp"

namespace commfuse {
namespace {

using Environment = std::map<std::string, std::string>;

Code code_of(const Environment& environment) {
  try {
    (void)read_launch(environment);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

std::string text_of(const Environment& environment) {
  try {
    (void)read_launch(environment);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "run"}};

Environment changed(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

TEST(LaunchInfo, ReadsWhatTorchrunSets) {
  const LaunchInfo info = read_launch(kTorchrun);
  EXPECT_EQ(info.launcher, Launcher::kTorchrun);
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 4);
  EXPECT_EQ(info.master_host, "10.0.0.1");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_EQ(info.job, read_launch(changed(changed(kTorchrun, "RANK", "6"), "LOCAL_RANK", "2")).job)
      << "the same on all ranks";
  EXPECT_NE(info.job, read_launch(changed(kTorchrun, "MASTER_PORT", "29501")).job) << "two jobs of one host";
  EXPECT_NE(info.job, read_launch(changed(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "1")).job) << "a restart";
}

TEST(LaunchInfo, ReadsWhatOpenMpiSets) {
  const LaunchInfo info = read_launch({{"OMPI_COMM_WORLD_RANK", "3"},
                                       {"OMPI_COMM_WORLD_SIZE", "4"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                       {"PMIX_NAMESPACE", "605814785"}});
  EXPECT_EQ(info.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 2);
  EXPECT_NE(info.job.find("605814785"), std::string::npos);
}

TEST(LaunchInfo, ReadsWhatAPmiLauncherSets) {
  const LaunchInfo info = read_launch(
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_JOBID", "j"}});
  EXPECT_EQ(info.launcher, Launcher::kPmi);
  EXPECT_EQ(info.size, 2);
  EXPECT_EQ(info.local_size, 2);
  EXPECT_NE(info.job, "");
  EXPECT_EQ(read_launch({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).local_size, -1) << "not said";
  EXPECT_EQ(read_launch({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).job, "") << "not said";
}

TEST(LaunchInfo, ReadsWhatSrunSets) {
  Environment environment = {{"SLURM_PROCID", "4"},
                             {"SLURM_NTASKS", "7"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_NODEID", "2"},
                             {"SLURM_TASKS_PER_NODE", "2(x2),3"},
                             {"SLURM_JOB_ID", "99"},
                             {"SLURM_STEP_ID", "1"}};
  const LaunchInfo info = read_launch(environment);
  EXPECT_EQ(info.launcher, Launcher::kSlurm);
  EXPECT_EQ(info.rank, 4);
  EXPECT_EQ(info.size, 7);
  EXPECT_EQ(info.local_size, 3);
  EXPECT_NE(info.job, read_launch(changed(environment, "SLURM_STEP_ID", "2")).job) << "two steps of a job";
  EXPECT_EQ(read_launch(changed(environment, "SLURM_NODEID", "1")).local_size, 2);
  EXPECT_EQ(
      read_launch(changed(changed(environment, "SLURM_STEP_NUM_TASKS", "5"), "SLURM_STEP_TASKS_PER_NODE", "1(x4),1"))
          .size,
      5)
      << "a step of part of the allocation";
  EXPECT_EQ(code_of(changed(environment, "SLURM_NODEID", "3")), Code::kInvalidArgument);
  for (const char* list : {"2(x", "2(x0)", "two", "2(x2)3", ","}) {
    EXPECT_EQ(code_of(changed(environment, "SLURM_TASKS_PER_NODE", list)), Code::kInvalidArgument) << list;
  }
  EXPECT_EQ(read_launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "1"}}).local_size, 4);
}

TEST(LaunchInfo, TakesTheInnermostOfLaunchersInsideEachOther) {
  Environment environment = kTorchrun;
  environment.insert(
      {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_EQ(read_launch(environment).launcher, Launcher::kTorchrun);
  environment.erase("RANK");
  environment.erase("WORLD_SIZE");
  EXPECT_EQ(read_launch(environment).launcher, Launcher::kOpenMpi);
}

TEST(LaunchInfo, MissingMalformedAndContradictingValuesAreNamed) {
  EXPECT_EQ(code_of({}), Code::kNotFound);
  EXPECT_NE(text_of(without(kTorchrun, "WORLD_SIZE")).find("WORLD_SIZE is not set"), std::string::npos);
  EXPECT_NE(text_of(without(kTorchrun, "RANK")).find("RANK is not set"), std::string::npos);
  EXPECT_NE(text_of(changed(kTorchrun, "RANK", "")).find("RANK is not set"), std::string::npos);
  for (const char* value : {"-1", "two", "1 ", "1.0", "99999999999999999999"}) {
    EXPECT_NE(text_of(changed(kTorchrun, "RANK", value)).find(value), std::string::npos) << value;
  }
  EXPECT_NE(text_of(changed(kTorchrun, "RANK", "8")).find("rank 8 of 8"), std::string::npos);
  EXPECT_NE(text_of(changed(kTorchrun, "LOCAL_RANK", "4")).find("local rank 4 of 4"), std::string::npos);
  EXPECT_NE(text_of(changed(kTorchrun, "LOCAL_WORLD_SIZE", "9")).find("9 ranks on this host of 8"), std::string::npos);
  EXPECT_EQ(code_of(changed(kTorchrun, "WORLD_SIZE", "0")), Code::kInvalidArgument);
  EXPECT_EQ(code_of(changed(kTorchrun, "MASTER_PORT", "70000")), Code::kInvalidArgument);
  EXPECT_EQ(code_of(without({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}, "OMPI_COMM_WORLD_SIZE")),
            Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"PMI_SIZE", "2"}}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"SLURM_PROCID", "0"}}), Code::kInvalidArgument);
}

TEST(LaunchInfo, AnExchangeThatCannotBeChosenSaysWhatToSet) {
  const auto text_for = [](const Environment& environment, const std::vector<int>& members = {}) {
    try {
      (void)make_exchange_from_environment(environment, members, Timeout(50));
    } catch (const Error& error) {
      return std::string(to_string(error.code())) + " " + error.what();
    }
    return std::string();
  };
  EXPECT_NE(text_for({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).find("COMMFUSE_EXCHANGE_JOB"), std::string::npos);
  EXPECT_NE(text_for({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_JOBID", "j"}}).find("COMMFUSE_EXCHANGE=unix"),
            std::string::npos);
  EXPECT_NE(text_for(kTorchrun).find("COMMFUSE_EXCHANGE_ADDRESS"), std::string::npos);
  EXPECT_NE(text_for(changed(kTorchrun, "COMMFUSE_EXCHANGE_ADDRESS", "127.0.0.1:1")).find("COMMFUSE_EXCHANGE_KEY"),
            std::string::npos);
  EXPECT_TRUE(text_for(changed(kTorchrun, "COMMFUSE_EXCHANGE", "carrier pigeon")).starts_with("InvalidArgument"));
  EXPECT_TRUE(text_for(kTorchrun, {0, 1}).starts_with("InvalidArgument")) << "this rank is no member";
  EXPECT_TRUE(text_for(kTorchrun, {5, 5}).starts_with("InvalidArgument")) << "a member twice";
  EXPECT_TRUE(text_for(kTorchrun, {5, 8}).starts_with("InvalidArgument")) << "no such rank";
  EXPECT_TRUE(text_for(kTorchrun, {1, 5}).starts_with("Unsupported")) << "over TCP without rank 0";
}

TEST(GroupName, DependsOnTheJobAndTheSetOfMembersAlone) {
  EXPECT_EQ(group_name("job", std::vector{3, 0, 2, 1, 8}), "job[0-3,8]");
  EXPECT_EQ(group_name("job", std::vector{0, 1}), "job[0,1]");
  EXPECT_NE(group_name("job", std::vector{0, 1}), group_name("job", std::vector{2, 3}));
  EXPECT_NE(group_name("job", std::vector{0, 1}), group_name("other", std::vector{0, 1}));
  std::vector<int> even, odd;
  for (int rank = 0; rank < 1000; rank += 2) {
    even.push_back(rank);
    odd.push_back(rank == 998 ? 999 : rank);
  }
  EXPECT_LT(group_name("job", even).size(), 200U);
  EXPECT_NE(group_name("job", even), group_name("job", odd));
}

class ExchangeKeyFile : public testing::Test {
 protected:
  ExchangeKeyFile() {
    std::string name = (std::filesystem::temp_directory_path() / "commfuse-key-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
    path = folder / "key";
  }
  ~ExchangeKeyFile() override { std::filesystem::remove_all(folder); }
  void write(const std::string& text, ::mode_t mode) const {
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
  }
  [[nodiscard]] Code code() const {
    try {
      (void)ExchangeKey::from_file(path);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  }
  std::filesystem::path folder, path;
};

TEST_F(ExchangeKeyFile, GivesTheKeyOfItsText) {
  write("a secret for tests only\n", 0600);
  const auto from_file = ExchangeKey::from_file(path);
  const auto from_text = ExchangeKey::from_secret("a secret for tests only");
  EXPECT_TRUE(std::equal(from_file.bytes().begin(), from_file.bytes().end(), from_text.bytes().begin()));
  const auto from_environment = ExchangeKey::from_environment({{"COMMFUSE_EXCHANGE_KEY_FILE", path.string()}});
  EXPECT_TRUE(std::equal(from_file.bytes().begin(), from_file.bytes().end(), from_environment.bytes().begin()));
}

TEST_F(ExchangeKeyFile, IsRefusedWhereOthersMayReadItOrItHoldsNoKey) {
  EXPECT_EQ(code(), Code::kNotFound);
  write("a secret for tests only", 0640);
  EXPECT_EQ(code(), Code::kInvalidArgument);
  write("short", 0600);
  EXPECT_EQ(code(), Code::kInvalidArgument);
  write(std::string(5000, 'x'), 0600);
  EXPECT_EQ(code(), Code::kInvalidArgument);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(code(), Code::kInvalidArgument);
  EXPECT_THROW((void)ExchangeKey::from_environment({}), Error);
}

}  // namespace
}  // namespace commfuse
