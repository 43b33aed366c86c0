// Registered buffers, the life of groups and their falling back, on as many real GPUs as there are (all on one if there
// is one). This program starts itself once for each rank.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>

#include "commfuse/engine.hpp"
#include "gpu/loopback.hpp"
#include "process/group_processes.hpp"
#include "runtime/driver.hpp"
#include "runtime/peer_memory.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse::gpu {
namespace {

using namespace std::chrono_literals;
using reference::Values;
using runtime::driver;

constexpr std::int64_t kTokens = 16;

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return text_of(error);
  }
  return "nothing";
}

/// A rank, its context and its group.
class Rank {
 public:
  explicit Rank(const RankArguments& arguments)
      : exchange_(arguments.meet()), context_(arguments.rank % device_count()), kind_(arguments.kind) {}

  [[nodiscard]] ProcessGroup make(std::uint64_t rotation_bytes = kRotationBytes) {
    return ProcessGroup::create(*exchange_, {.rotation_bytes = rotation_bytes, .timeout = 20s, .set_up_timeout = 30s},
                                kind_);
  }
  [[nodiscard]] Exchange& exchange() { return *exchange_; }
  void meet() { exchange_->barrier(30s); }

  /// Whether every rank reads at its own addresses what every other wrote into its own memory, and the other way round.
  [[nodiscard]] bool reaches_all(const RegisteredBuffer& buffer) {
    const auto rank = static_cast<std::size_t>(exchange_->rank());
    const auto size = static_cast<std::size_t>(exchange_->size());
    std::vector<std::uint32_t> words(size + 1);
    const std::size_t end = buffer.bytes() / sizeof(std::uint32_t);
    const auto at = [&](int peer, std::size_t word) { return address_of(buffer.pointer(peer)) + 4 * word; };
    const auto value = [&](std::size_t from, std::size_t to) {
      return static_cast<std::uint32_t>(1000 * (round_ + 1) + 20 * from + to);
    };
    // The last word is the owner's, those before it one for each sender.
    for (std::size_t peer = 0; peer < size; ++peer) {
      const std::uint32_t word = value(rank, peer);
      COMMFUSE_DRIVER(cuMemcpyHtoD(at(static_cast<int>(peer), end - 2 - rank), &word, 4));
    }
    const std::uint32_t own = value(rank, 19);
    COMMFUSE_DRIVER(cuMemcpyHtoD(at(static_cast<int>(rank), end - 1), &own, 4));
    COMMFUSE_DRIVER(cuCtxSynchronize());
    meet();
    bool is_right = true;
    for (std::size_t peer = 0; peer < size; ++peer) {
      std::uint32_t received = 0;
      std::uint32_t theirs = 0;
      COMMFUSE_DRIVER(cuMemcpyDtoH(&received, at(static_cast<int>(rank), end - 2 - peer), 4));
      COMMFUSE_DRIVER(cuMemcpyDtoH(&theirs, at(static_cast<int>(peer), end - 1), 4));
      is_right = is_right && received == value(peer, rank) && theirs == value(peer, 19);
    }
    ++round_;
    meet();
    return is_right;
  }

 private:
  static int device_count() {
    int count = 0;
    COMMFUSE_DRIVER(cuDeviceGetCount(&count));
    return count;
  }

  std::unique_ptr<Exchange> exchange_;
  DeviceContext context_;
  MemoryKind kind_;
  std::uint32_t round_ = 0;
};

/// A call that the driver table has no need of.
template <typename Function>
Function extra(const char* name) {
  static const auto library = runtime::DynamicLibrary::open("libcuda.so.1", nullptr);
  return reinterpret_cast<Function>(library->symbol(name));
}

runtime::MappedRange allocate_segments(std::size_t count, unsigned types) {
  CUdevice device = 0;
  COMMFUSE_DRIVER(cuCtxGetDevice(&device));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  constexpr std::size_t kSegment = std::size_t{4} << 20;
  runtime::MappedRange range(kSegment * count);
  for (std::size_t i = 0; i < count; ++i) {
    runtime::AllocationHandle handle;
    handle.create(properties, kSegment);
    range.append(handle.get(), device, kSegment);
  }
  return range;
}

KernelSpec shape(int world_size) {
  KernelSpec spec;
  spec.pattern = Pattern::kAllReduce;
  spec.world_size = world_size;
  spec.hidden_size = 2048;
  spec.dtype = spec.gamma_dtype = DataType::kBf16;
  spec.algorithm = Algorithm::kOneShot;
  spec.arch = current_arch();
  return spec.normalised();
}
std::vector<KernelSpec> kernels_of(int world_size) {
  std::vector<KernelSpec> kernels;
  KernelSpec spec = shape(world_size);
  for (const Geometry& geometry : geometries(spec)) {
    spec.threads = geometry.threads;
    spec.cluster = geometry.cluster;
    kernels.push_back(spec);
  }
  return kernels;
}
std::uint64_t bytes_for(int world_size) { return required_rotation_bytes(shape(world_size), kTokens); }

/// One call, alone and captured.
class Call {
 public:
  Call(const RankArguments& arguments, Workspace& workspace, std::uint64_t seed)
      : kernels_(KernelSet::warm_up(kernels_of(arguments.size), options(arguments))),
        operation_(kernels_, workspace, kind_of(shape(arguments.size))),
        placed_(reference::make_case(shape(arguments.size), kTokens, Values::kNormal, seed), arguments.rank),
        rank_(arguments.rank) {}
  ~Call() {
    if (graph_ != nullptr) COMMFUSE_DRIVER_NOEXCEPT(cuGraphExecDestroy(graph_));
  }

  Status launch() { return operation_.launch(placed_.tensors(rank_), kTokens, {}, stream_.get()); }
  /// Empty if it was launched and its result is right.
  [[nodiscard]] std::string result_of_launch() {
    placed_.restore();
    if (const Status status = launch(); !status.ok()) return status.text();
    COMMFUSE_DRIVER(cuStreamSynchronize(stream_.get()));
    return placed_.check();
  }
  void capture() {
    CUgraph graph = nullptr;
    COMMFUSE_DRIVER(cuStreamBeginCapture(stream_.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    const Status status = launch();
    COMMFUSE_DRIVER(cuStreamEndCapture(stream_.get(), &graph));
    if (!status.ok()) throw Error(status.code, status.text());
    COMMFUSE_DRIVER(cuGraphInstantiateWithFlags(&graph_, graph, 0));
    COMMFUSE_DRIVER(cuGraphDestroy(graph));
  }
  [[nodiscard]] std::string result_of_replay() {
    placed_.restore();
    COMMFUSE_DRIVER(cuGraphLaunch(graph_, stream_.get()));
    COMMFUSE_DRIVER(cuStreamSynchronize(stream_.get()));
    return placed_.check();
  }

 private:
  static BuildOptions options(const RankArguments& arguments) {
    BuildOptions options;
    options.cache_dir = arguments.directory.parent_path() / "commfuse-group-memory-cache";
    return options;
  }

  KernelSet kernels_;
  AllReduce operation_;
  PlacedCase placed_;
  int rank_;
  StreamHandle stream_;
  CUgraphExec graph_ = nullptr;
};

// ---- tasks ----------------------------------------------------------------------------------------------------------

void allocate(const RankArguments& arguments) {
  Rank rank(arguments);
  ProcessGroup group = rank.make();
  COMMFUSE_REQUIRE(group.kind() == arguments.kind);
  for (int round = 0; round < 3; ++round) {
    const RegisteredBuffer small = group.allocate(4000);
    const RegisteredBuffer large = group.allocate(std::uint64_t{10} << 20);
    COMMFUSE_REQUIRE(address_of(large.pointer(arguments.rank)) % 256 == 0);
    std::uint32_t first = 1;
    COMMFUSE_DRIVER(cuMemcpyDtoH(&first, address_of(small.pointer(arguments.rank)), 4));
    COMMFUSE_REQUIRE(first == 0);
    rank.meet();
    COMMFUSE_REQUIRE(rank.reaches_all(small) && rank.reaches_all(large));
    group.release(small);
    COMMFUSE_REQUIRE(rank.reaches_all(large));
    group.release(large);
  }
  std::printf("ok\n");
}
const RankTaskEntry kAllocate("allocate", allocate);

void register_tensors(const RankArguments& arguments) {
  Rank rank(arguments);
  ProcessGroup group = rank.make();
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr pool = 0;
    COMMFUSE_DRIVER(cuMemAlloc(&pool, std::size_t{6} << 20));
    const CUdeviceptr tensor = pool + 512 * static_cast<std::size_t>(arguments.rank);
    const RegisteredBuffer first = group.register_buffer(pointer_to(tensor), 65536);
    const RegisteredBuffer second = group.register_buffer(pointer_to(tensor + 65536), std::uint64_t{4} << 20);
    COMMFUSE_REQUIRE(rank.reaches_all(first) && rank.reaches_all(second));
    group.release(first);
    COMMFUSE_REQUIRE(rank.reaches_all(second));
    group.release(second);
    COMMFUSE_DRIVER(cuMemFree(pool));
  }
  {
    const runtime::MappedRange segments = allocate_segments(3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const CUdeviceptr inside = segments.pointer() + (std::size_t{1} << 20);
    const RegisteredBuffer across = group.register_buffer(pointer_to(inside), std::uint64_t{10} << 20);
    COMMFUSE_REQUIRE(rank.reaches_all(across));
    group.release(across);
  }
  std::printf("ok\n");
}
const RankTaskEntry kRegister("register", register_tensors);

void refuse(const RankArguments& arguments) {
  Rank rank(arguments);
  ProcessGroup group = rank.make();
  const auto with = [&](const char* what, void* pointer) {
    std::printf("%s: %s\n", what, thrown_by([&] { (void)group.register_buffer(pointer, 4096); }).c_str());
  };
  std::vector<char> ordinary(8192);
  with("host", pointer_to((address_of(ordinary.data()) + 15) / 16 * 16));
  void* pinned = nullptr;
  COMMFUSE_DRIVER(cuMemHostAlloc(&pinned, 4096, 0));
  with("pinned", pinned);
  CUdeviceptr managed = 0;
  const auto allocate_managed = extra<CUresult (*)(CUdeviceptr*, std::size_t, unsigned)>("cuMemAllocManaged");
  COMMFUSE_REQUIRE(allocate_managed(&managed, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  with("managed", pointer_to(managed));
  CUdeviceptr pooled = 0;
  const auto allocate_async = extra<CUresult (*)(CUdeviceptr*, std::size_t, CUstream)>("cuMemAllocAsync");
  COMMFUSE_REQUIRE(allocate_async(&pooled, 4096, nullptr) == CUDA_SUCCESS);
  COMMFUSE_DRIVER(cuCtxSynchronize());
  with("pool", pointer_to(pooled));
  const runtime::MappedRange closed = allocate_segments(1, CU_MEM_HANDLE_TYPE_NONE);
  with("closed", pointer_to(closed.pointer()));
  CUdeviceptr plain = 0;
  COMMFUSE_DRIVER(cuMemAlloc(&plain, 4096));
  with("plain", pointer_to(plain));
}
const RankTaskEntry kRefuse("refuse", refuse);

void live(const RankArguments& arguments) {
  Rank rank(arguments);
  ProcessGroup group = rank.make(bytes_for(arguments.size));
  Workspace& workspace = group.workspace();
  Call call(arguments, workspace, 1);
  call.capture();
  const auto works = [&] {
    for (int i = 0; i < 5; ++i) {
      if (const std::string wrong = call.result_of_launch(); !wrong.empty()) {
        std::printf("call %d: %s; %s\n", i, wrong.c_str(), workspace.failure().text().c_str());
        return false;
      }
    }
    return true;
  };
  const auto replays = [&] {
    const std::string wrong = call.result_of_replay();
    return wrong.empty() && workspace.failure().code == Code::kOk;
  };
  COMMFUSE_REQUIRE(works() && replays());
  // An abort, and on.
  if (arguments.rank == 0) workspace.abort();
  rank.meet();
  group.reset();
  COMMFUSE_REQUIRE(works() && replays());
  // The graph is refused, new calls are not.
  group.grow(4 * bytes_for(arguments.size));
  COMMFUSE_REQUIRE(works());
  rank.meet();
  COMMFUSE_REQUIRE(!replays() && workspace.failure().code == Code::kStale);
  COMMFUSE_REQUIRE(call.launch().code == Code::kStale);
  rank.meet();
  group.reset();
  COMMFUSE_REQUIRE(works());
  // Sleep. A replay touches nothing.
  Call other(arguments, workspace, 2);
  other.capture();
  group.suspend();
  COMMFUSE_REQUIRE(other.launch().code == Code::kStale);
  COMMFUSE_REQUIRE(!other.result_of_replay().empty());
  rank.meet();
  group.resume();
  COMMFUSE_REQUIRE(works());
  rank.meet();
  const bool has_old_addresses = group.kind() != MemoryKind::kLegacyIpc;
  COMMFUSE_REQUIRE(other.result_of_replay().empty() == has_old_addresses);
  COMMFUSE_REQUIRE(workspace.failure().code == (has_old_addresses ? Code::kOk : Code::kStale));
  rank.meet();
  group.reset();
  COMMFUSE_REQUIRE(works());
  std::printf("ok\n");
}
const RankTaskEntry kLive("live", live);

void fall_back(const RankArguments& arguments) {
  Rank rank(arguments);
  std::string text;
  std::size_t free_first = 0;
  std::size_t total = 0;
  std::ptrdiff_t descriptors = 0;
  for (int i = 0; i < arguments.times; ++i) {
    std::string made;
    const std::string thrown = thrown_by([&] { made = "made " + std::string(to_string(rank.make().kind())); });
    text = made.empty() ? thrown : made;
    if (i == 1) {
      // What the driver opens once and keeps is open by then.
      rank.meet();
      COMMFUSE_DRIVER(cuMemGetInfo(&free_first, &total));
      descriptors = open_descriptors();
      rank.meet();
    }
  }
  rank.meet();
  std::size_t free_last = 0;
  COMMFUSE_DRIVER(cuMemGetInfo(&free_last, &total));
  if (free_last < free_first) std::printf("left behind %zu bytes\n", free_first - free_last);
  if (open_descriptors() != descriptors) std::printf("left behind descriptors\n");
  std::printf("%s\n", text.c_str());
  rank.meet();
}
const RankTaskEntry kFallBack("fall back", fall_back);

/// The primary context is reset under a group, which is then destroyed; another one works in the new context.
void end(const RankArguments& arguments) {
  Rank rank(arguments);
  std::optional<ProcessGroup> group = rank.make();
  (void)group->allocate(4096);
  CUdeviceptr plain = 0;
  COMMFUSE_DRIVER(cuMemAlloc(&plain, 65536));
  (void)group->register_buffer(pointer_to(plain), 65536);
  CUdevice device = 0;
  COMMFUSE_DRIVER(cuCtxGetDevice(&device));
  COMMFUSE_DRIVER(cuCtxSynchronize());
  rank.meet();
  COMMFUSE_REQUIRE(extra<CUresult (*)(CUdevice)>("cuDevicePrimaryCtxReset_v2")(device) == CUDA_SUCCESS);
  {
    const DeviceContext again(device);
    // May lie where the group's memory was.
    CUdeviceptr mine = 0;
    COMMFUSE_DRIVER(cuMemAlloc(&mine, 65536));
    const std::uint32_t written = 17;
    COMMFUSE_DRIVER(cuMemcpyHtoD(mine, &written, 4));
    group.reset();
    std::uint32_t read = 0;
    COMMFUSE_DRIVER(cuMemcpyDtoH(&read, mine, 4));
    COMMFUSE_REQUIRE(read == written);
    COMMFUSE_DRIVER(cuMemFree(mine));
    rank.meet();
    ProcessGroup another = rank.make();
    COMMFUSE_REQUIRE(rank.reaches_all(another.allocate(4096)));
  }
  std::printf("ok\n");
}
const RankTaskEntry kEnd("end", end);

// ---- tests ----------------------------------------------------------------------------------------------------------

class GroupMemory : public ProcessGroups {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << "needs a GPU: " << reason;
    ProcessGroups::SetUp();
    deadline_ = std::chrono::seconds(120);
  }
};
class GroupMemoryKinds : public GroupMemory, public ::testing::WithParamInterface<MemoryKind> {};

TEST_P(GroupMemoryKinds, AllocatedMemoryIsReachedByEveryRank) {
  for (const std::size_t size : {2U, 4U}) expect_all(run("allocate", std::vector<RankSetup>(size), GetParam()), "ok\n");
}

TEST_P(GroupMemoryKinds, TheEnginesOwnMemoryIsReachedByEveryRank) {
  for (const std::size_t size : {2U, 4U}) expect_all(run("register", std::vector<RankSetup>(size), GetParam()), "ok\n");
}

TEST_P(GroupMemoryKinds, CallsAndGraphsLiveThroughResetGrowAndSleep) {
  for (const std::size_t size : {2U, 4U}) expect_all(run("live", std::vector<RankSetup>(size), GetParam()), "ok\n");
}

TEST_P(GroupMemoryKinds, AGroupMayOutliveItsContext) { expect_all(run("end", {{}, {}}, GetParam()), "ok\n"); }

TEST_P(GroupMemoryKinds, AHundredGroupsInARowLeaveMemoryAndDescriptorsAsTheyWere) {
  expect_all(run("fall back", {{}, {}}, GetParam(), 100), "made " + std::string(to_string(GetParam())) + "\n");
}

INSTANTIATE_TEST_SUITE_P(Gpu, GroupMemoryKinds, ::testing::Values(MemoryKind::kVmmDescriptor, MemoryKind::kLegacyIpc),
                         [](const auto& chosen) { return std::string(to_string(chosen.param)); });

TEST_F(GroupMemory, MemoryThatCannotBeSharedIsRefusedWithWhatItIs) {
  for (const std::string& text : run("refuse", {{}, {}})) {
    for (const char* part :
         {"host: error Unsupported", "CUDA does not know it", "pinned: error Unsupported", "page-locked host memory",
          "managed: error Unsupported", "it is managed memory", "pool: error Unsupported", "from a memory pool",
          "closed: error Unsupported", "without an exportable handle type", "plain: nothing"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
  }
}

TEST_F(GroupMemory, OneRanksDriverErrorMovesTheWholeGroupToAnotherKind) {
  for (const char* call : {"cuMemExportToShareableHandle:801", "cuMemImportFromShareableHandle:101", "cuMemMap:1"}) {
    const RankSetup failing{{std::string("COMMFUSE_TEST_FAIL=") + call}, {}};
    const auto texts = run("fall back", {{}, failing, {}}, MemoryKind::kAuto, 3);
    for (const std::string& text : texts) EXPECT_NE(text.find("made "), std::string::npos) << call << ": " << text;
    expect_alike(texts, {});
  }
}

TEST_F(GroupMemory, AHundredFailuresInARowLeaveMemoryAndDescriptorsAsTheyWere) {
  for (const char* code : {"101", "217"}) {
    const RankSetup failing{
        {std::string("COMMFUSE_TEST_FAIL=cuMemImportFromShareableHandle:801 cuIpcOpenMemHandle:") + code}, {}};
    expect_alike(run("fall back", {{}, failing}, MemoryKind::kAuto, 100),
                 {"error ", "rank 1: cannot map the memory of rank 0"});
  }
}

}  // namespace
}  // namespace commfuse::gpu
