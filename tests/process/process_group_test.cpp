// Making a group among real processes, with a stand-in for the driver whose memory they really share.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "process/group_processes.hpp"
#include "process/stand_in.hpp"

namespace commfuse {
namespace {

using namespace std::chrono_literals;

/// Prints "made KIND | REASON | ranks on the device" or "error CODE TEXT"; then "left behind ..." if something is.
void make(const RankArguments& arguments) {
  auto exchange = arguments.meet();
  std::ptrdiff_t descriptors = 0;
  for (int i = 0; i < arguments.times; ++i) {
    try {
      if (std::getenv("COMMFUSE_TEST_DIES") != nullptr) ::raise(SIGKILL);
      std::optional<ProcessGroup> made = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
      ProcessGroup& group = *made;
      if (const std::string wrong = use(*exchange, group.workspace()); !wrong.empty()) {
        std::printf("wrong: %s\n", wrong.c_str());
        return;
      }
      if (i + 1 == arguments.times) {
        std::printf("made %s | %s | %d\n", std::string(to_string(group.kind())).c_str(), group.kind_reason().c_str(),
                    group.workspace().caps().ranks_on_device);
      }
      const auto before = std::chrono::steady_clock::now();
      made.reset();
      if (std::chrono::steady_clock::now() - before > 1800ms) std::printf("slow to leave\n");
    } catch (const Error& error) {
      if (i + 1 == arguments.times) std::printf("%s\n", text_of(error).c_str());
    }
    if (i == 0) descriptors = open_descriptors();
  }
  if (device_bytes() != 0 || wrong_calls() != 0) std::printf("left behind device memory, or freed too much\n");
  if (live_objects() != 0) std::printf("left behind %d objects of the driver\n", live_objects());
  if (open_descriptors() != descriptors) std::printf("left behind descriptors\n");
}
const RankTaskEntry kMake("make", make);

TEST_F(ProcessGroups, EveryKindGivesEachRankTheMemoryOfTheOthers) {
  for (const std::size_t size : {1U, 2U, 5U}) {
    const std::vector<RankSetup> ranks(size);
    const std::string count = std::to_string(size);
    const std::string vmm = "made vmm_descriptor | vmm_descriptor works on all ranks | " + count + "\n";
    expect_all(run("make", ranks), vmm);
    expect_all(run("make", ranks, MemoryKind::kVmmDescriptor), vmm);
    expect_all(run("make", ranks, MemoryKind::kLegacyIpc),
               "made legacy_ipc | legacy_ipc works on all ranks | " + count + "\n");
  }
}

TEST_F(ProcessGroups, RanksOnSeveralDevicesPlanForTheFullestOfThem) {
  const RankSetup other{{"COMMFUSE_TEST_UUID=2"}};
  expect_all(run("make", {{}, other, other, {{"COMMFUSE_TEST_UUID=3"}}}),
             "made vmm_descriptor | vmm_descriptor works on all ranks | 2\n");
}

TEST_F(ProcessGroups, DevicesThatCannotReachEachOtherAreRefusedOnEveryRank) {
  expect_alike(run("make", {{{"COMMFUSE_TEST_ALONE=1"}}, {{"COMMFUSE_TEST_ALONE=1", "COMMFUSE_TEST_UUID=1"}}}),
               {"error Unsupported", "rank 0: its GPU cannot access the GPU of rank 1", "nvidia-smi topo"});
}

TEST_F(ProcessGroups, AKindThatFailsOnOneRankIsLeftByAllTogether) {
  for (const std::string call : {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemMap", "cuMemAddressReserve",
                                 "cuMemSetAccess", "cuMemImportFromShareableHandle"}) {
    const auto texts = run("make", {{}, {{"COMMFUSE_TEST_FAIL=" + call}}, {}});
    expect_alike(texts, {"made legacy_ipc", "vmm_descriptor does not work (rank 1: ", call, "CUDA_ERROR_INVALID_DEVICE",
                         "legacy_ipc works on all ranks"});
  }
}

TEST_F(ProcessGroups, WhereNoKindWorksEveryRankGetsTheSameErrorAndNothingIsLeft) {
  const std::string mappings = "COMMFUSE_TEST_FAIL=cuMemImportFromShareableHandle cuIpcOpenMemHandle";
  expect_alike(run("make", {{}, {}, {{mappings}}}),
               {"error Driver", "rank 2: cannot map the memory of rank 0", "cuIpcOpenMemHandle"});
  const std::string all = "COMMFUSE_TEST_FAIL=cuMemAlloc cuMemCreate";
  expect_alike(run("make", {{{all}}, {}, {}}), {"error Driver", "rank 0: "});
  expect_alike(run("make", {{}, {{"COMMFUSE_TEST_FAIL=cuIpcGetMemHandle"}}}, MemoryKind::kLegacyIpc),
               {"error Driver", "rank 1: ", "cuIpcGetMemHandle"});
}

TEST_F(ProcessGroups, WritesThatNeverArriveAreFoundAndThePairIsNamed) {
  expect_alike(run("make", {{}, {{"COMMFUSE_TEST_DROP=1"}}, {}}),
               {"error Unsupported", "rank 0: what rank 1 wrote to it did not arrive",
                "rank 2: what rank 1 wrote to it did not arrive", "IOMMU"});
}

TEST_F(ProcessGroups, ReadsThatDoNotArriveAreFoundAndThePairIsNamed) {
  expect_alike(run("make", {{}, {}, {{"COMMFUSE_TEST_STALE=1"}}}),
               {"error Unsupported", "rank 2: what it reads from rank 0 is not what it wrote there"});
}

TEST_F(ProcessGroups, TheSelfTestCanBeLeftOutByAllTogether) {
  const RankSetup off{{"COMMFUSE_TEST_NO_SELF_TEST=1"}};
  const RankSetup off_and_broken{{"COMMFUSE_TEST_NO_SELF_TEST=1", "COMMFUSE_TEST_STALE=1"}};
  expect_alike(run("make", {off, off_and_broken}), {"made vmm_descriptor"});
  expect_alike(run("make", {{}, off, {}}), {"error Mismatch", "rank 1 differs"});
}

TEST_F(ProcessGroups, ManyGroupsThatCameToBeAndThatDidNotLeaveNothingBehind) {
  expect_alike(run("make", {{}, {}}, MemoryKind::kVmmDescriptor, 30), {"made vmm_descriptor"});
  expect_alike(run("make", {{}, {}}, MemoryKind::kLegacyIpc, 30), {"made legacy_ipc"});
  expect_alike(run("make", {{}, {{"COMMFUSE_TEST_FAIL=cuMemSetAccess cuIpcOpenMemHandle"}}}, MemoryKind::kAuto, 30),
               {"error Driver"});
}

TEST_F(ProcessGroups, ARankThatDiesInAnyStepEndsTheOthersAtOnceAndNothingIsLeft) {
  // Before the group is made, and in each of its steps up to its destruction.
  for (const std::string call : {"", "cuDeviceGetUuid", "cuMemHostAlloc", "cuMemCreate", "cuMemExportToShareableHandle",
                                 "cuMemImportFromShareableHandle", "cuMemcpyHtoD", "cuMemcpyDtoH"}) {
    const auto before = std::chrono::steady_clock::now();
    auto texts = run("make", {{}, {}, {{call.empty() ? "COMMFUSE_TEST_DIES=1" : "COMMFUSE_TEST_KILL=" + call}}});
    EXPECT_LT(std::chrono::steady_clock::now() - before, 8s) << call;
    EXPECT_EQ(texts.back(), "") << call;
    texts.pop_back();
    expect_alike(texts, {"error Io", "rank 2"});
  }
}

TEST_F(ProcessGroups, LeavingDoesNotWaitForARankThatDied) {
  auto texts = run("make", {{}, {}, {{"COMMFUSE_TEST_KILL=cuMemUnmap"}}});
  texts.pop_back();
  expect_all(texts, "made vmm_descriptor | vmm_descriptor works on all ranks | 3\n");
}

// A rank that stops before it has closed its mappings may still write through them.
TEST_F(ProcessGroups, MemoryOpenedByIpcIsKeptWhereAPeerHasNotClosedIt) {
  auto texts = run("make", {{}, {}, {{"COMMFUSE_TEST_KILL=cuIpcCloseMemHandle"}}}, MemoryKind::kLegacyIpc);
  texts.pop_back();
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("made legacy_ipc"), std::string::npos) << text;
    EXPECT_NE(text.find("left behind 1 objects of the driver"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace commfuse
