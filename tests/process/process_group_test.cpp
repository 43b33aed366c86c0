// Making a group among real processes, with a stand-in for the driver whose memory they really share. This program
// starts itself once for each rank.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"
#include "runtime/workspace_state.hpp"

extern char** environ;

namespace commfuse {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRotationBytes = 4096;
constexpr std::uint64_t kWords = 3 * kRotationBytes / sizeof(std::uint32_t);

// ---- one rank -------------------------------------------------------------------------------------------------------

int live_objects() {
  void* library = ::dlopen(std::getenv("COMMFUSE_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  return reinterpret_cast<int (*)()>(::dlsym(library, "commfuse_test_live_objects"))();
}
std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

/// Addresses of all ranks' rotation buffers, as this rank's kernels would be told them.
std::vector<volatile std::uint32_t*> buffers_of(Workspace& workspace) {
  device::AllReduceParams params{};
  static_cast<runtime::WorkspaceState&>(workspace).fill(params);
  std::vector<volatile std::uint32_t*> buffers;
  for (int rank = 0; rank < workspace.world_size(); ++rank) {
    buffers.push_back(reinterpret_cast<volatile std::uint32_t*>(params.peer_buffer[rank]));
  }
  return buffers;
}

std::string use(Exchange& exchange, Workspace& workspace) {
  const auto buffers = buffers_of(workspace);
  for (const auto* buffer : buffers) {
    for (std::uint64_t i = 0; i < kWords; ++i) {
      if (buffer[i] != 0xffffffffU) return "a buffer was not empty";
    }
  }
  exchange.barrier(5s);
  const auto rank = static_cast<std::size_t>(exchange.rank());
  for (auto* buffer : buffers) buffer[kWords - 1 - rank] = static_cast<std::uint32_t>(rank);
  exchange.barrier(5s);
  for (std::size_t sender = 0; sender < buffers.size(); ++sender) {
    if (buffers[rank][kWords - 1 - sender] != sender) return "a peer's word did not arrive";
  }
  return {};
}

/// Prints "made KIND | REASON | ranks on the device" or "error CODE TEXT"; then "left behind ..." if something is.
int run_rank(char** words) try {
  const int rank = std::atoi(words[0]);
  const auto kind = static_cast<MemoryKind>(std::atoi(words[4]));
  const bool dies = std::string_view(words[5]) == "dies";
  const int times = std::atoi(words[6]);
  auto exchange = make_unix_exchange(
      {.group = words[2], .rank = rank, .size = std::atoi(words[1]), .directory = words[3], .host = std::nullopt}, 20s);
  const WorkspaceOptions options{.rotation_bytes = kRotationBytes, .timeout = 1s, .set_up_timeout = 10s};
  std::ptrdiff_t descriptors = 0;
  for (int i = 0; i < times; ++i) {
    try {
      if (dies) ::raise(SIGKILL);
      std::optional<ProcessGroup> made = ProcessGroup::create(*exchange, options, kind);
      ProcessGroup& group = *made;
      if (const std::string wrong = use(*exchange, group.workspace()); !wrong.empty()) {
        std::printf("wrong: %s\n", wrong.c_str());
        return 1;
      }
      if (i + 1 == times) {
        std::printf("made %s | %s | %d\n", std::string(to_string(group.kind())).c_str(), group.kind_reason().c_str(),
                    group.workspace().caps().ranks_on_device);
      }
      const auto before = std::chrono::steady_clock::now();
      made.reset();
      if (std::chrono::steady_clock::now() - before > 1800ms) std::printf("slow to leave\n");
    } catch (const Error& error) {
      if (i + 1 == times) std::printf("error %s %s\n", std::string(to_string(error.code())).c_str(), error.what());
    }
    if (i == 0) descriptors = open_descriptors();
  }
  if (live_objects() != 0) std::printf("left behind %d objects of the driver\n", live_objects());
  if (open_descriptors() != descriptors) std::printf("left behind descriptors\n");
  return 0;
} catch (const std::exception& error) {
  std::printf("outside: %s\n", error.what());
  return 1;
}

// ---- all of them ----------------------------------------------------------------------------------------------------

struct RankSetup {
  std::vector<std::string> environment;
  bool dies = false;
};

class ProcessGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/commfuse-groups-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  /// What each rank printed; ends when all have ended, which is checked to be in time.
  std::vector<std::string> run(const std::vector<RankSetup>& ranks, MemoryKind kind = MemoryKind::kAuto,
                               int times = 1) {
    std::vector<pid_t> pids;
    const auto output = [&](std::size_t rank) { return directory_ / ("output-" + std::to_string(rank)); };
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      std::vector<std::string> words = {"/proc/self/exe",
                                        "--rank-process",
                                        std::to_string(rank),
                                        std::to_string(ranks.size()),
                                        "group " + directory_.string(),
                                        (directory_ / "exchange").string(),
                                        std::to_string(static_cast<int>(kind)),
                                        ranks[rank].dies ? "dies" : "lives",
                                        std::to_string(times)};
      std::vector<std::string> variables = ranks[rank].environment;
      variables.emplace_back("COMMFUSE_LIBCUDA=" COMMFUSE_SHARED_MEMORY_DRIVER);
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      std::vector<char*> environment;
      for (std::string& variable : variables) environment.push_back(variable.data());
      for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
      environment.push_back(nullptr);
      posix_spawn_file_actions_t actions;
      ::posix_spawn_file_actions_init(&actions);
      ::posix_spawn_file_actions_addopen(&actions, 1, output(rank).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      pid_t pid = -1;
      EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environment.data()), 0);
      ::posix_spawn_file_actions_destroy(&actions);
      pids.push_back(pid);
    }
    std::vector<std::string> texts;
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    for (std::size_t rank = 0; rank < pids.size(); ++rank) {
      if (pids[rank] > 0) {
        while (::waitpid(pids[rank], nullptr, WNOHANG) == 0) {
          if (std::chrono::steady_clock::now() > deadline) {
            ADD_FAILURE() << "rank " << rank << " hangs";
            ::kill(pids[rank], SIGKILL);
          }
          std::this_thread::sleep_for(2ms);
        }
      }
      std::ifstream file(output(rank));
      texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return texts;
  }

  static void expect_all(const std::vector<std::string>& texts, const std::string& expected) {
    for (const std::string& text : texts) EXPECT_EQ(text, expected);
  }
  static void expect_alike(const std::vector<std::string>& texts, const std::vector<std::string>& parts) {
    for (const std::string& text : texts) {
      EXPECT_EQ(text, texts.front());
      for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
      EXPECT_EQ(text.find("left behind"), std::string::npos) << text;
    }
  }

  std::filesystem::path directory_;
};

TEST_F(ProcessGroups, EveryKindGivesEachRankTheMemoryOfTheOthers) {
  for (const std::size_t size : {1U, 2U, 5U}) {
    const std::vector<RankSetup> ranks(size);
    const std::string count = std::to_string(size);
    const std::string vmm = "made vmm_descriptor | vmm_descriptor works on all ranks | " + count + "\n";
    expect_all(run(ranks), vmm);
    expect_all(run(ranks, MemoryKind::kVmmDescriptor), vmm);
    expect_all(run(ranks, MemoryKind::kLegacyIpc), "made legacy_ipc | legacy_ipc works on all ranks | " + count + "\n");
  }
}

TEST_F(ProcessGroups, RanksOnSeveralDevicesPlanForTheFullestOfThem) {
  const RankSetup other{{"COMMFUSE_TEST_UUID=2"}, false};
  expect_all(run({{}, other, other, {{"COMMFUSE_TEST_UUID=3"}, false}}),
             "made vmm_descriptor | vmm_descriptor works on all ranks | 2\n");
}

TEST_F(ProcessGroups, DevicesThatCannotReachEachOtherAreRefusedOnEveryRank) {
  expect_alike(run({{{"COMMFUSE_TEST_ALONE=1"}, false}, {{"COMMFUSE_TEST_ALONE=1", "COMMFUSE_TEST_UUID=1"}, false}}),
               {"error Unsupported", "rank 0: its GPU cannot access the GPU of rank 1", "nvidia-smi topo"});
}

TEST_F(ProcessGroups, AKindThatFailsOnOneRankIsLeftByAllTogether) {
  for (const std::string call : {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemMap", "cuMemAddressReserve",
                                 "cuMemSetAccess", "cuMemImportFromShareableHandle"}) {
    const auto texts = run({{}, {{"COMMFUSE_TEST_FAIL=" + call}, false}, {}});
    expect_alike(texts, {"made legacy_ipc", "vmm_descriptor does not work (rank 1: ", call, "CUDA_ERROR_INVALID_DEVICE",
                         "legacy_ipc works on all ranks"});
  }
}

TEST_F(ProcessGroups, WhereNoKindWorksEveryRankGetsTheSameErrorAndNothingIsLeft) {
  const std::string mappings = "COMMFUSE_TEST_FAIL=cuMemImportFromShareableHandle cuIpcOpenMemHandle";
  expect_alike(run({{}, {}, {{mappings}, false}}),
               {"error Driver", "rank 2: cannot map the memory of rank 0", "cuIpcOpenMemHandle"});
  const std::string all = "COMMFUSE_TEST_FAIL=cuMemAlloc cuMemCreate";
  expect_alike(run({{{all}, false}, {}, {}}), {"error Driver", "rank 0: "});
  expect_alike(run({{}, {{"COMMFUSE_TEST_FAIL=cuIpcGetMemHandle"}, false}}, MemoryKind::kLegacyIpc),
               {"error Driver", "rank 1: ", "cuIpcGetMemHandle"});
}

TEST_F(ProcessGroups, WritesThatNeverArriveAreFoundAndThePairIsNamed) {
  expect_alike(run({{}, {{"COMMFUSE_TEST_DROP=1"}, false}, {}}),
               {"error Unsupported", "rank 0: what rank 1 wrote to it did not arrive",
                "rank 2: what rank 1 wrote to it did not arrive", "IOMMU"});
}

TEST_F(ProcessGroups, ManyGroupsThatCameToBeAndThatDidNotLeaveNothingBehind) {
  expect_alike(run({{}, {}}, MemoryKind::kVmmDescriptor, 30), {"made vmm_descriptor"});
  expect_alike(run({{}, {}}, MemoryKind::kLegacyIpc, 30), {"made legacy_ipc"});
  expect_alike(run({{}, {{"COMMFUSE_TEST_FAIL=cuMemSetAccess cuIpcOpenMemHandle"}, false}}, MemoryKind::kAuto, 30),
               {"error Driver"});
}

TEST_F(ProcessGroups, ARankThatDiesInAnyStepEndsTheOthersAtOnceAndNothingIsLeft) {
  // Before the group is made, and in each of its steps up to its destruction.
  for (const std::string call : {"", "cuDeviceGetUuid", "cuMemHostAlloc", "cuMemCreate", "cuMemExportToShareableHandle",
                                 "cuMemImportFromShareableHandle", "cuMemcpyHtoD", "cuMemcpyDtoH"}) {
    const auto before = std::chrono::steady_clock::now();
    auto texts = run({{}, {}, {{"COMMFUSE_TEST_KILL=" + call}, call.empty()}});
    EXPECT_LT(std::chrono::steady_clock::now() - before, 8s) << call;
    EXPECT_EQ(texts.back(), "") << call;
    texts.pop_back();
    expect_alike(texts, {"error Io", "rank 2"});
  }
}

TEST_F(ProcessGroups, LeavingDoesNotWaitForARankThatDied) {
  auto texts = run({{}, {}, {{"COMMFUSE_TEST_KILL=cuMemUnmap"}, false}});
  texts.pop_back();
  expect_all(texts, "made vmm_descriptor | vmm_descriptor works on all ranks | 3\n");
}

// A rank that stops before it has closed its mappings may still write through them.
TEST_F(ProcessGroups, MemoryOpenedByIpcIsKeptWhereAPeerHasNotClosedIt) {
  auto texts = run({{}, {}, {{"COMMFUSE_TEST_KILL=cuIpcCloseMemHandle"}, false}}, MemoryKind::kLegacyIpc);
  texts.pop_back();
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("made legacy_ipc"), std::string::npos) << text;
    EXPECT_NE(text.find("left behind 1 objects of the driver"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace commfuse

int main(int argc, char** argv) {
  if (argc == 9 && std::string_view(argv[1]) == "--rank-process") return commfuse::run_rank(argv + 2);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
