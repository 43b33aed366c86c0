// What a group does where a driver, a host or a container stands in its way: all ranks fall back together, or all get
// the same error in time. The ranks do the task "make" of process_group_test.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "process/group_processes.hpp"

namespace commfuse {
namespace {

using namespace std::chrono_literals;

RankSetup fails(const std::string& calls) { return {{"COMMFUSE_TEST_FAIL=" + calls}}; }
RankSetup on_host(const std::string& name, std::vector<std::string> more = {}) {
  more.push_back("COMMFUSE_TEST_HOST=" + name);
  return {std::move(more)};
}

class GroupFallback : public ProcessGroups {
 protected:
  /// The ranks' folder holds nothing but what a living group needs.
  void expect_no_files() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ / "exchange")) {
      EXPECT_FALSE(entry.is_socket()) << entry.path();
    }
  }
  std::vector<std::string> run_in(std::chrono::milliseconds limit, const std::vector<RankSetup>& ranks,
                                  MemoryKind kind = MemoryKind::kAuto) {
    const auto before = std::chrono::steady_clock::now();
    auto texts = run("make", ranks, kind);
    EXPECT_LT(std::chrono::steady_clock::now() - before, limit);
    return texts;
  }
};

TEST_F(GroupFallback, OneRanksDriverErrorMovesTheWholeGroupToAnotherKind) {
  for (const std::string call :
       {"cuMemExportToShareableHandle:801", "cuMemImportFromShareableHandle:101", "cuMemImportFromShareableHandle:217",
        "cuMemCreate:801", "cuMemMap:1", "cuMemAddressReserve:2", "cuMemSetAccess:217"}) {
    expect_alike(run_in(5s, {{}, fails(call), {}}),
                 {"made legacy_ipc", "vmm_descriptor does not work (rank 1: ", call.substr(0, call.find(':'))});
  }
}

TEST_F(GroupFallback, OneRankThatCannotOpenTheOthersIsEveryRanksErrorWithTheDriversWords) {
  const std::vector<std::pair<std::string, std::string>> errors = {
      {"101", "INVALID_DEVICE"}, {"217", "PEER_ACCESS_UNSUPPORTED"}, {"1", "INVALID_VALUE"}, {"401", "ILLEGAL_STATE"}};
  for (const auto& [number, name] : errors) {
    expect_alike(run_in(5s, {{}, {}, fails("cuIpcOpenMemHandle:" + number), {}}, MemoryKind::kLegacyIpc),
                 {"error Driver", "rank 2: cannot map the memory of rank 0", "cuIpcOpenMemHandle", name});
  }
}

TEST_F(GroupFallback, AHundredFailuresInARowLeaveTheProcessAsItWas) {
  const std::vector<std::vector<RankSetup>> setups = {
      {{}, fails("cuMemSetAccess:217 cuIpcOpenMemHandle:217")},
      {fails("cuMemExportToShareableHandle:801 cuIpcGetMemHandle:801"), {}},
      {{}, fails("cuMemHostAlloc:2")},
      {{}, {{"COMMFUSE_TEST_DROP=1"}}},
      {{}, {{"COMMFUSE_TEST_ALONE=1", "COMMFUSE_TEST_UUID=1"}}},
      {{}, on_host("elsewhere")},
  };
  for (const auto& setup : setups) {
    expect_alike(run("make", setup, MemoryKind::kAuto, 100), {"error "});
    expect_no_files();
  }
}

TEST_F(GroupFallback, RanksOfSeveralHostsAreRefusedAtOnceUnlessAllHaveFabricHandles) {
  const std::vector<std::string> pair = {"error Unsupported", "node-a", "node-b", "Exchange::split"};
  expect_alike(run_in(2s, {on_host("node-a"), on_host("node-b")}), pair);
  expect_alike(run_in(2s, {on_host("node-a", {"COMMFUSE_TEST_FABRIC=1"}), on_host("node-b")}),
               {"error Unsupported", "node-a", "node-b", "the GPU of rank 1 has none"});
  const RankSetup a = on_host("node-a", {"COMMFUSE_TEST_FABRIC=1"});
  const RankSetup b = on_host("node-b", {"COMMFUSE_TEST_FABRIC=1"});
  expect_alike(run("make", {a, a, b, b}), {"made vmm_fabric | vmm_fabric works on all ranks | 4"});
  expect_alike(run("make", {a, b}, MemoryKind::kVmmFabric), {"made vmm_fabric"});
  expect_alike(run_in(2s, {a, b}, MemoryKind::kLegacyIpc), {"error Unsupported", "legacy_ipc was asked for", "node-b"});
  const RankSetup refused = on_host("node-b", {"COMMFUSE_TEST_FABRIC=1", "COMMFUSE_TEST_FAIL=cuMemCreate:801"});
  expect_alike(run_in(2s, {a, refused}), {"error Unsupported", "rank 1: ", "cuMemCreate", "NOT_SUPPORTED"});
  const RankSetup apart =
      on_host("node-b", {"COMMFUSE_TEST_FABRIC=1", "COMMFUSE_TEST_FAIL=cuMemImportFromShareableHandle:101"});
  expect_alike(run_in(2s, {a, apart}), {"error Driver", "rank 1: cannot map the memory of rank 0", "NVLink domain"});
}

TEST_F(GroupFallback, OnOneHostFabricHandlesComeBeforeIpc) {
  const RankSetup fabric{{"COMMFUSE_TEST_FABRIC=1"}};
  expect_alike(run("make", {fabric, fabric}), {"made vmm_descriptor"});
  // In containers that cannot pass descriptors to each other, for one.
  const auto in = [](const char* space) {
    return RankSetup{
        {"COMMFUSE_TEST_FABRIC=1", "COMMFUSE_TEST_BRIDGE=1", std::string("COMMFUSE_TEST_NAMESPACES=") + space}};
  };
  expect_alike(run("make", {in("5"), in("6")}),
               {"made vmm_fabric", "vmm_descriptor does not work", "different mount namespaces"});
}

TEST_F(GroupFallback, ContainersThatShareNothingAreToldWhatToShare) {
  const auto in = [](const char* space, const std::string& failing = "") {
    return RankSetup{
        {"COMMFUSE_TEST_BRIDGE=1", std::string("COMMFUSE_TEST_NAMESPACES=") + space, "COMMFUSE_TEST_FAIL=" + failing}};
  };
  // Descriptors cannot be passed; IPC handles still may work.
  expect_alike(run("make", {in("5"), in("6"), in("5")}),
               {"made legacy_ipc", "vmm_descriptor does not work", "ranks 0 and 1", "different mount namespaces"});
  expect_alike(run_in(5s, {in("5"), in("6", "cuIpcOpenMemHandle:101"), in("5")}),
               {"error ", "rank 1: cannot map the memory of rank 0", "COMMFUSE_EXCHANGE_DIR"});
  expect_alike(run_in(5s, {in("5"), in("6", "cuIpcOpenMemHandle:101"), in("5")}, MemoryKind::kLegacyIpc),
               {"error Driver", "rank 1: cannot map the memory of rank 0", "different IPC namespaces", "--ipc"});
}

TEST_F(GroupFallback, ARankInAnotherPidNamespaceSharesByDescriptorAndIsNamedWhereOnlyIpcIsLeft) {
  if (std::system("unshare -Urpf --mount-proc true 2>/dev/null") != 0) {
    GTEST_SKIP() << "this machine does not let processes make namespaces";
  }
  const RankSetup contained{{}, "unshare -Urpf --mount-proc"};
  expect_alike(run("make", {{}, contained, {}}), {"made vmm_descriptor"});
  expect_alike(run_in(5s, {{}, contained, {}}, MemoryKind::kLegacyIpc),
               {"error Driver", "rank 1: cannot map the memory of rank 0", "rank 0: cannot map the memory of rank 1",
                "different PID namespaces", "--pid"});
}

TEST_F(GroupFallback, DevicesAreKnownByUuidWhateverTheirNumberIsInAProcess) {
  // Both are on device 3 of the host, which is number 0 to the one.
  const RankSetup usual{{"COMMFUSE_TEST_UUID=3"}};
  const RankSetup turned{{"COMMFUSE_TEST_UUID=3", "COMMFUSE_TEST_ORDER=1"}};
  expect_alike(run("make", {usual, turned}), {"made vmm_descriptor", "| 2\n"});
  // Equal numbers, different devices.
  expect_alike(run("make", {{{"COMMFUSE_TEST_UUID=0"}}, turned}), {"made vmm_descriptor", "| 1\n"});
}

TEST_F(GroupFallback, OneGpuThatCannotReachAnotherIsNamedWithItsPair) {
  const RankSetup alone{{"COMMFUSE_TEST_UUID=1", "COMMFUSE_TEST_ALONE=1"}};
  expect_alike(run_in(5s, {{}, {}, alone}),
               {"error Unsupported", "rank 2: its GPU cannot access the GPU of rank 0", "nvidia-smi topo"});
}

}  // namespace
}  // namespace commfuse
