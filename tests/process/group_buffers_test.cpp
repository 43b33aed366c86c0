// Registered buffers among real processes, with a stand-in for the driver whose memory they really share.
#include <cuda.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "process/group_processes.hpp"
#include "process/stand_in.hpp"
#include "runtime/driver.hpp"
#include "runtime/peer_memory.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

using namespace std::chrono_literals;

/// One rank with a group, and what the tests do with it. Says "ok" or what is wrong, at the end "left behind ...".
class Rank {
 public:
  explicit Rank(const RankArguments& arguments)
      : exchange_(arguments.meet()),
        group_(std::make_unique<ProcessGroup>(
            ProcessGroup::create(*exchange_, RankArguments::options(), arguments.kind))) {}

  [[nodiscard]] Exchange& exchange() { return *exchange_; }
  [[nodiscard]] ProcessGroup& group() { return *group_; }
  [[nodiscard]] int rank() const { return exchange_->rank(); }
  void leave() { group_.reset(); }

  /// Whether every rank reaches, through its own addresses, what every other writes into its own memory.
  [[nodiscard]] bool reaches_all(const RegisteredBuffer& buffer) {
    static_cast<volatile std::uint64_t*>(buffer.pointer(rank()))[buffer.bytes() / 8 - 1] = mark(rank(), ++round_);
    exchange_->barrier(5s);
    bool is_right = true;
    for (int peer = 0; peer < exchange_->size(); ++peer) {
      const auto* words = static_cast<volatile std::uint64_t*>(buffer.pointer(peer));
      is_right = is_right && words[buffer.bytes() / 8 - 1] == mark(peer, round_);
    }
    exchange_->barrier(5s);
    return is_right;
  }
  [[nodiscard]] const runtime::RegisteredRange* range_of(const void* pointer, std::size_t bytes) {
    return static_cast<runtime::WorkspaceState&>(group_->workspace()).registered(pointer, bytes);
  }
  /// The text of what registering throws.
  [[nodiscard]] std::string refusal(void* pointer, std::uint64_t bytes) {
    try {
      (void)group_->register_buffer(pointer, bytes);
    } catch (const Error& error) {
      return text_of(error);
    }
    return "registered";
  }

 private:
  static std::uint64_t mark(int rank, std::uint64_t round) { return round * 1000 + static_cast<std::uint64_t>(rank); }

  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ProcessGroup> group_;
  std::uint64_t round_ = 0;
};

char* allocate_plain(std::size_t bytes) {
  CUdeviceptr pointer = 0;
  COMMFUSE_DRIVER(cuMemAlloc(&pointer, bytes));
  return reinterpret_cast<char*>(pointer);
}
void free_plain(void* pointer) { COMMFUSE_DRIVER(cuMemFree(reinterpret_cast<CUdeviceptr>(pointer))); }

/// Neighbouring allocations of cuMemCreate, as an allocator with expandable segments has them.
runtime::MappedRange allocate_segments(int count, unsigned types) {
  constexpr std::size_t kSegment = std::size_t{2} << 20;
  runtime::MappedRange range(kSegment * static_cast<std::size_t>(count));
  CUmemAllocationProp properties{};
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  for (int i = 0; i < count; ++i) {
    runtime::AllocationHandle handle;
    handle.create(properties, kSegment);
    range.append(handle.get(), 0, kSegment);
  }
  return range;
}

// ---- tasks ----------------------------------------------------------------------------------------------------------

void allocate(const RankArguments& arguments) {
  Rank rank(arguments);
  const int before = live_objects();
  const RegisteredBuffer small = rank.group().allocate(1000);
  const RegisteredBuffer large = rank.group().allocate(std::uint64_t{5} << 20);
  COMMFUSE_REQUIRE(small.id() != large.id() && small.bytes() == 1000);
  COMMFUSE_REQUIRE(reinterpret_cast<std::uintptr_t>(small.pointer(rank.rank())) % 256 == 0);
  COMMFUSE_REQUIRE(*static_cast<std::uint64_t*>(small.pointer(rank.rank())) == 0);
  COMMFUSE_REQUIRE(rank.reaches_all(small) && rank.reaches_all(large));
  // What launches look up.
  auto* own = static_cast<char*>(small.pointer(rank.rank()));
  const runtime::RegisteredRange* range = rank.range_of(own + 16, 984);
  COMMFUSE_REQUIRE(range != nullptr && range->id == small.id());
  for (int peer = 0; peer < arguments.size; ++peer) {
    COMMFUSE_REQUIRE(range->peer_base[static_cast<std::size_t>(peer)] ==
                     reinterpret_cast<std::uintptr_t>(small.pointer(peer)));
  }
  COMMFUSE_REQUIRE(rank.range_of(own + 16, 985) == nullptr && rank.range_of(own - 1, 4) == nullptr);
  rank.group().release(small);
  COMMFUSE_REQUIRE(rank.range_of(own, 16) == nullptr);
  COMMFUSE_REQUIRE(rank.range_of(large.pointer(rank.rank()), large.bytes()) != nullptr);
  COMMFUSE_REQUIRE(rank.reaches_all(large));
  rank.group().release(large);
  COMMFUSE_REQUIRE(live_objects() == before);
  // What is not released goes with the group.
  (void)rank.group().allocate(64);
  rank.leave();
  COMMFUSE_REQUIRE(live_objects() == 0);
  std::printf("ok\n");
}
const RankTaskEntry kAllocate("allocate", allocate);

void register_tensors(const RankArguments& arguments) {
  Rank rank(arguments);
  // At another place in the allocation on each rank, and another allocation that is shorter.
  char* pool = allocate_plain(100000);
  char* tensor = pool + 256 * (rank.rank() + 1);
  const int before = live_objects();
  const RegisteredBuffer first = rank.group().register_buffer(tensor, 4096);
  const int once = foreign_mappings();
  COMMFUSE_REQUIRE(once == 2 * (arguments.size - 1));  // and those of the rotation buffers
  COMMFUSE_REQUIRE(first.pointer(rank.rank()) == tensor);
  const RegisteredBuffer second = rank.group().register_buffer(tensor + 4096, 8192);
  COMMFUSE_REQUIRE(foreign_mappings() == once);  // opened once
  COMMFUSE_REQUIRE(rank.reaches_all(first) && rank.reaches_all(second));
  const RegisteredBuffer again = rank.group().register_buffer(tensor, 4096);
  COMMFUSE_REQUIRE(again.id() == first.id() && again.pointer(0) == first.pointer(0));
  rank.group().release(first);
  COMMFUSE_REQUIRE(rank.range_of(tensor, 4096) != nullptr);
  rank.group().release(again);
  COMMFUSE_REQUIRE(rank.range_of(tensor, 4096) == nullptr);
  COMMFUSE_REQUIRE(rank.reaches_all(second));
  rank.group().release(second);
  COMMFUSE_REQUIRE(live_objects() == before);  // closed with the last
  free_plain(pool);
  // Memory at the same address, if the driver gives it out again, is another.
  pool = allocate_plain(100000);
  const RegisteredBuffer third = rank.group().register_buffer(pool, 100000 / 16 * 16);
  COMMFUSE_REQUIRE(rank.reaches_all(third));
  rank.leave();
  free_plain(pool);
  COMMFUSE_REQUIRE(live_objects() == 0);
  std::printf("ok\n");
}
const RankTaskEntry kRegister("register", register_tensors);

void register_segments(const RankArguments& arguments) {
  {
    Rank rank(arguments);
    // Ranks need not have the same kind of memory.
    const bool is_plain = rank.rank() == 1;
    char* plain = is_plain ? allocate_plain(std::size_t{6} << 20) : nullptr;
    const runtime::MappedRange segments =
        is_plain ? runtime::MappedRange() : allocate_segments(3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    char* start = is_plain ? plain : reinterpret_cast<char*>(segments.pointer());
    const RegisteredBuffer across = rank.group().register_buffer(start + (std::size_t{1} << 20), std::size_t{4} << 20);
    COMMFUSE_REQUIRE(rank.reaches_all(across));
    rank.group().release(across);
    const int before = live_objects();
    const RegisteredBuffer first = rank.group().register_buffer(start + 4096, 4096);
    COMMFUSE_REQUIRE(rank.reaches_all(first));
    rank.group().release(first);
    COMMFUSE_REQUIRE(live_objects() == before);
    if (is_plain) free_plain(plain);
  }
  COMMFUSE_REQUIRE(live_objects() == 0);
  std::printf("ok\n");
}
const RankTaskEntry kSegments("segments", register_segments);

/// Prints the refusals, which must be alike on all ranks, though only rank 1 has the wrong memory.
void refuse(const RankArguments& arguments) {
  Rank rank(arguments);
  const bool is_wrong = rank.rank() == 1;
  char* plain = allocate_plain(65536);
  const auto with = [&](const char* what, void* wrong, std::uint64_t bytes = 4096) {
    const int before = live_objects();
    std::printf("%s: %s\n", what, rank.refusal(is_wrong ? wrong : plain, bytes).c_str());
    if (live_objects() != before) std::printf("left behind after %s\n", what);
  };
  static char ordinary[4096];
  with("host", ordinary);
  void* pinned = nullptr;
  COMMFUSE_DRIVER(cuMemHostAlloc(&pinned, 4096, 0));
  with("pinned", pinned);
  with("managed", allocate_as("managed", 4096));
  with("pool", allocate_as("pool", 4096));
  const runtime::MappedRange closed = allocate_segments(1, CU_MEM_HANDLE_TYPE_NONE);
  with("closed", reinterpret_cast<void*>(closed.pointer()));
  with("null", nullptr);
  with("askew", plain + 8);
  with("beyond", plain + 65536 - 16);
  const RegisteredBuffer buffer = rank.group().register_buffer(plain, 4096);
  with("overlap", plain + 16);
  with("mixed", plain + 8192);
  // After all of this the group works.
  COMMFUSE_REQUIRE(rank.reaches_all(buffer));
  COMMFUSE_REQUIRE(use(rank.exchange(), rank.group().workspace()).empty());
  std::printf("ok\n");
}
const RankTaskEntry kRefuse("refuse", refuse);

/// The ranks do not ask for the same.
void disagree(const RankArguments& arguments) {
  Rank rank(arguments);
  const auto tell = [](const std::function<void()>& call) {
    try {
      call();
      std::printf("nothing\n");
    } catch (const Error& error) {
      std::printf("%s\n", text_of(error).c_str());
    }
  };
  char* plain = allocate_plain(65536);
  const std::uint64_t bytes = rank.rank() == 2 ? 8192 : 4096;
  tell([&] { (void)rank.group().register_buffer(plain, bytes); });
  tell([&] { (void)rank.group().allocate(bytes); });
  tell([&] { (void)(rank.rank() == 2 ? rank.group().allocate(4096) : rank.group().register_buffer(plain, 4096)); });
  const RegisteredBuffer a = rank.group().allocate(4096);
  const RegisteredBuffer b = rank.group().allocate(4096);
  tell([&] { rank.group().release(rank.rank() == 2 ? b : a); });
  COMMFUSE_REQUIRE(rank.reaches_all(a) && rank.reaches_all(b));
  rank.group().release(a);
  tell([&] { rank.group().release(a); });
  tell([&] { (void)rank.group().allocate(0); });
  std::printf("ok\n");
}
const RankTaskEntry kDisagree("disagree", disagree);

/// Whatever fails on one rank while a buffer is registered leaves the group as it was.
void fail(const RankArguments& arguments) {
  Rank rank(arguments);
  char* plain = allocate_plain(65536);
  const int before = live_objects();
  const std::ptrdiff_t descriptors = open_descriptors();
  std::string text;
  for (int i = 0; i < arguments.times; ++i) text = rank.refusal(plain, 4096);
  std::printf("%s\n", text.c_str());
  if (live_objects() != before) std::printf("left behind %d\n", live_objects() - before);
  if (open_descriptors() != descriptors) std::printf("left behind descriptors\n");
  COMMFUSE_REQUIRE(use(rank.exchange(), rank.group().workspace()).empty());
  std::printf("ok\n");
}
const RankTaskEntry kFail("fail", fail);

/// One rank has no memory for what launches look up: neither what is registered nor what is allocated stays.
void fail_at_the_end(const RankArguments& arguments) {
  Rank rank(arguments);
  char* plain = allocate_plain(65536);
  const RegisteredBuffer kept = rank.group().register_buffer(plain, 4096);
  const int before = live_objects();
  const std::size_t bytes = device_bytes();
  // Nothing of it is new but that.
  if (rank.rank() == 1) limit_memory(1);
  for (int i = 0; i < 3; ++i) std::printf("%s\n", rank.refusal(plain + 8192, 4096).c_str());
  limit_memory(0);
  COMMFUSE_REQUIRE(live_objects() == before && device_bytes() == bytes);
  COMMFUSE_REQUIRE(rank.range_of(plain + 8192, 4096) == nullptr && rank.reaches_all(kept));
  const RegisteredBuffer now = rank.group().register_buffer(plain + 8192, 4096);
  COMMFUSE_REQUIRE(rank.reaches_all(now));
  std::printf("ok\n");
}
const RankTaskEntry kFailAtTheEnd("fail at the end", fail_at_the_end);

/// The last rank dies with a buffer registered; the others release it.
void lose_one(const RankArguments& arguments) {
  Rank rank(arguments);
  const RegisteredBuffer buffer = rank.group().allocate(4096);
  if (rank.rank() == arguments.size - 1) ::raise(SIGKILL);
  try {
    rank.group().release(buffer);
    std::printf("released\n");
  } catch (const ExchangeError& error) {
    std::printf("%s\n", text_of(error).c_str());
  }
  rank.leave();
  std::printf("%d objects kept\n", live_objects());
}
const RankTaskEntry kLose("lose", lose_one);

/// All ranks in this one process.
void loopback(const RankArguments&) {
  {
    LoopbackGroup group(3, RankArguments::options());
    const int before = live_objects();
    const RegisteredBuffer own = group.allocate(1001);
    COMMFUSE_REQUIRE(live_objects() >= before + 3);
    char* pool = allocate_plain(4 * 4096);
    const std::vector<void*> places = {pool + 4096, pool, pool + 2 * 4096};
    const RegisteredBuffer theirs = group.register_buffers(places, 4096);
    for (int rank = 0; rank < 3; ++rank) {
      auto& state = static_cast<runtime::WorkspaceState&>(group.workspace(rank));
      for (const RegisteredBuffer& buffer : {own, theirs}) {
        const runtime::RegisteredRange* range = state.registered(buffer.pointer(rank), buffer.bytes());
        COMMFUSE_REQUIRE(range != nullptr && range->id == buffer.id());
        for (int peer = 0; peer < 3; ++peer) {
          COMMFUSE_REQUIRE(range->peer_base[static_cast<std::size_t>(peer)] ==
                           reinterpret_cast<std::uintptr_t>(buffer.pointer(peer)));
        }
      }
    }
    const auto refusal = [&](std::vector<void*> pointers) {
      try {
        (void)group.register_buffers(pointers, 4096);
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("registered");
    };
    COMMFUSE_REQUIRE(refusal({pool, pool}).find("2 for 3 ranks") != std::string::npos);
    COMMFUSE_REQUIRE(refusal({pool, pool + 8, pool}).find("not aligned") != std::string::npos);
    COMMFUSE_REQUIRE(refusal({pool, pool + 4096, pool + 8192 - 16}).find("rank 2 overlaps") != std::string::npos);
    COMMFUSE_REQUIRE(refusal({pool, pool + 4096, pool + 8192 - 16}) == refusal({pool, pool + 4096, pool + 8192 - 16}));
    group.release(theirs);
    group.release(group.register_buffers(std::vector<void*>{pool, pool + 4096, pool + 8192 - 16}, 4096));
    group.release(own);
    try {
      group.release(own);
      std::printf("released twice\n");
    } catch (const Error&) {
    }
    free_plain(pool);
    COMMFUSE_REQUIRE(live_objects() == before);
    (void)group.allocate(64);
  }
  COMMFUSE_REQUIRE(live_objects() == 0);
  std::printf("ok\n");
}
const RankTaskEntry kLoopback("loopback", loopback);

// ---- tests ----------------------------------------------------------------------------------------------------------

class GroupBuffers : public ProcessGroups {};

TEST_F(GroupBuffers, AllocatedMemoryIsReachedByEveryRankAndFoundByLaunches) {
  for (const std::size_t size : {2U, 4U, 8U}) {
    for (const MemoryKind kind : {MemoryKind::kVmmDescriptor, MemoryKind::kLegacyIpc}) {
      expect_all(run("allocate", std::vector<RankSetup>(size), kind), "ok\n");
    }
  }
}

TEST_F(GroupBuffers, TensorsOfOneAllocationAreOpenedOnceAndClosedWithTheLast) {
  for (const std::size_t size : {2U, 4U, 8U}) expect_all(run("register", std::vector<RankSetup>(size)), "ok\n");
}

TEST_F(GroupBuffers, ALoopbackGroupHasThemToo) { expect_all(run("loopback", {{}}), "ok\n"); }

TEST_F(GroupBuffers, ExpandableSegmentsAreMappedAsOneRange) {
  for (const std::size_t size : {2U, 4U}) expect_all(run("segments", std::vector<RankSetup>(size)), "ok\n");
}

TEST_F(GroupBuffers, MemoryThatCannotBeSharedIsRefusedOnEveryRankWithWhatItIsAndWhatToDo) {
  expect_alike(run("refuse", {{}, {}, {}}), {"host: error Unsupported",
                                             "rank 1: peers cannot map",
                                             "CUDA does not know it",
                                             "pinned: error",
                                             "it is page-locked host memory",
                                             "managed: error",
                                             "it is managed memory",
                                             "pool: error",
                                             "it comes from a memory pool",
                                             "closed: error",
                                             "without an exportable handle type",
                                             "requestedHandleTypes",
                                             "null: error InvalidArgument",
                                             "the pointer is null",
                                             "askew: error",
                                             "not aligned to 16 bytes",
                                             "beyond: error",
                                             "its allocation ends after 16 bytes",
                                             "overlap: error",
                                             "they overlap 4096 registered bytes",
                                             "mixed: error",
                                             "to rank 1 it is new",
                                             "ProcessGroup::allocate",
                                             "\nok\n"});
}

TEST_F(GroupBuffers, RanksThatAskForDifferentThingsAllHearItAndGoOn) {
  const auto texts = run("disagree", {{}, {}, {}});
  expect_alike(texts, {"error Mismatch", "rank 2 differs", "was released before", "it has no bytes", "ok\n"});
  EXPECT_EQ(texts[0].find("nothing"), std::string::npos) << texts[0];
}

TEST_F(GroupBuffers, AFailureOnOneRankIsEveryRanksErrorAndLeavesNothingBehind) {
  expect_alike(run("fail", {{}, {{"COMMFUSE_TEST_FAIL=cuIpcOpenMemHandle:217"}}, {}}, MemoryKind::kVmmDescriptor, 100),
               {"error Driver", "rank 1: cannot map the memory of rank 0", "PEER_ACCESS_UNSUPPORTED", "ok\n"});
  expect_alike(run("fail", {{{"COMMFUSE_TEST_FAIL=cuIpcGetMemHandle:801"}}, {}}, MemoryKind::kVmmDescriptor, 100),
               {"error Unsupported", "rank 0: ", "cuIpcGetMemHandle", "ok\n"});
}

TEST_F(GroupBuffers, AFailureInTheLastStepIsUndoneOnEveryRank) {
  expect_alike(run("fail at the end", {{}, {}, {}}), {"error OutOfMemory", "rank 1: ", "ok\n"});
}

TEST_F(GroupBuffers, MemoryThatADeadPeerMayHaveOpenIsKeptOnlyWhereItMustBe) {
  auto texts = run("lose", {{}, {}, {}}, MemoryKind::kVmmDescriptor);
  texts.pop_back();
  expect_alike(texts, {"error Io", "rank 2", "0 objects kept"});
  texts = run("lose", {{}, {}, {}}, MemoryKind::kLegacyIpc);
  texts.pop_back();
  expect_alike(texts, {"error Io", "rank 2", "2 objects kept"});
}

}  // namespace
}  // namespace commfuse
