// Ranks that stop, come late, call something else or abort, each a process, on as many real GPUs as there are.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>

#include "commfuse/engine.hpp"
#include "gpu/loopback.hpp"
#include "process/group_processes.hpp"
#include "runtime/driver.hpp"

namespace commfuse::gpu {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using reference::Values;

constexpr std::int64_t kTokens = 8;

KernelSpec shape(int world_size, DataType dtype = DataType::kBf16) {
  KernelSpec spec;
  spec.pattern = Pattern::kResidualRmsNorm;
  spec.world_size = world_size;
  spec.hidden_size = 2048;
  spec.dtype = spec.gamma_dtype = dtype;
  spec.arch = current_arch();
  return spec.normalised();
}

std::vector<KernelSpec> kernels_of(int world_size) {
  std::vector<KernelSpec> kernels = {KernelSpec::call_check(world_size, current_arch())};
  for (const DataType dtype : {DataType::kBf16, DataType::kFp16}) {
    KernelSpec spec = shape(world_size, dtype);
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      spec.algorithm = algorithm;
      for (const Geometry& geometry : geometries(spec)) {
        spec.threads = geometry.threads;
        spec.cluster = geometry.cluster;
        kernels.push_back(spec);
      }
    }
  }
  return kernels;
}

/// One rank with its group and an operation on it.
class Member {
 public:
  Member(const RankArguments& arguments, std::chrono::nanoseconds timeout, bool checking = false)
      : arguments_(arguments),
        exchange_(arguments.meet()),
        context_(arguments.rank % device_count()),
        kernels_(KernelSet::warm_up(kernels_of(arguments.size), cache(arguments))),
        group_(ProcessGroup::create(*exchange_, options(arguments.size, timeout, checking), arguments.kind)) {
    exchange_->barrier(30s);
  }

  [[nodiscard]] bool is_last() const { return arguments_.rank + 1 == arguments_.size; }
  [[nodiscard]] ProcessGroup& group() { return group_; }
  [[nodiscard]] Workspace& workspace() { return group_.workspace(); }
  void meet() { exchange_->barrier(30s); }

  /// Launches a call and waits for its end.
  Status call(std::int64_t tokens = kTokens, DataType dtype = DataType::kBf16) {
    AllReduce operation(kernels_, workspace(), kind_of(shape(arguments_.size, dtype)));
    placed_ = std::make_unique<PlacedCase>(
        reference::make_case(shape(arguments_.size, dtype), tokens, Values::kNormal, 7), arguments_.rank);
    const Status status =
        operation.launch(placed_->tensors(arguments_.rank), tokens, options_of(placed_->data()), stream_.get());
    COMMFUSE_DRIVER(cuStreamSynchronize(stream_.get()));
    return status;
  }
  /// Whether the last call did what it should.
  [[nodiscard]] bool is_right() { return workspace().failure().code == Code::kOk && placed_->check().empty(); }

 private:
  static int device_count() {
    int count = 0;
    COMMFUSE_DRIVER(cuDeviceGetCount(&count));
    return count;
  }
  static BuildOptions cache(const RankArguments& arguments) {
    BuildOptions options;
    options.cache_dir = arguments.directory / "cache";
    return options;
  }
  static WorkspaceOptions options(int world_size, std::chrono::nanoseconds timeout, bool checking) {
    WorkspaceOptions options;
    for (const KernelSpec& spec : kernels_of(world_size)) {
      options.rotation_bytes = std::max(options.rotation_bytes, required_rotation_bytes(spec, 2 * kTokens));
    }
    options.timeout = timeout;
    options.checking = checking;
    return options;
  }

  RankArguments arguments_;
  std::unique_ptr<Exchange> exchange_;
  DeviceContext context_;
  KernelSet kernels_;
  ProcessGroup group_;
  StreamHandle stream_;
  std::unique_ptr<PlacedCase> placed_;
};

/// Calls until something fails; how long the call took that did.
Clock::duration call_until_failure(Member& member, int most) {
  for (int i = 0; i < most; ++i) {
    const auto begin = Clock::now();
    (void)member.call();
    if (member.workspace().failure().code != Code::kOk) return Clock::now() - begin;
  }
  return 0s;
}

void stop(const RankArguments& arguments) {
  constexpr auto kTimeout = 2s;
  Member member(arguments, kTimeout);
  const auto file = [&](const std::string& name) { return arguments.directory / name; };
  for (int i = 0; i < 20; ++i) COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  if (member.is_last()) {
    std::ofstream(file("victim")) << ::getpid() << std::flush;
    ::raise(SIGSTOP);
    return;  // never gets here: rank 0 kills it where it stands
  }
  const auto waited = call_until_failure(member, 2);
  const Failure failure = member.workspace().failure();
  std::ofstream(file("done-" + std::to_string(arguments.rank)));
  if (arguments.rank == 0) {
    for (int rank = 0; rank + 1 < arguments.size; ++rank) {
      while (!std::filesystem::exists(file("done-" + std::to_string(rank)))) std::this_thread::sleep_for(5ms);
    }
    int victim = 0;
    std::ifstream(file("victim")) >> victim;
    COMMFUSE_REQUIRE(victim > 0);
    ::kill(victim, SIGKILL);
  }
  COMMFUSE_REQUIRE(failure.code == Code::kTimeout);
  COMMFUSE_REQUIRE(waited >= kTimeout - 100ms && waited < kTimeout + 3s);
  COMMFUSE_REQUIRE(member.call().code == Code::kTimeout);
  std::printf("ok\n");
}
const RankTaskEntry kStop("stop", stop);

void late_in_time(const RankArguments& arguments) {
  Member member(arguments, 10s);
  for (int i = 0; i < 10; ++i) {
    if (i == 5 && member.is_last()) std::this_thread::sleep_for(3s);
    COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  }
  std::printf("ok\n");
}
const RankTaskEntry kLateInTime("late in time", late_in_time);

void late(const RankArguments& arguments) {
  Member member(arguments, 500ms);
  for (int i = 0; i < 5; ++i) COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  if (member.is_last()) std::this_thread::sleep_for(3s);
  // The one who is late finds the data of the others, and misses them in the call after.
  const auto waited = call_until_failure(member, 2);
  COMMFUSE_REQUIRE(member.workspace().failure().code == Code::kTimeout);
  COMMFUSE_REQUIRE(waited < 3s);
  member.meet();
  member.group().reset();
  COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  std::printf("ok\n");
}
const RankTaskEntry kLate("late", late);

void differ(const RankArguments& arguments, const std::function<void(Member&)>& usual,
            const std::function<void(Member&)>& other) {
  Member member(arguments, 60s, true);
  for (int i = 0; i < 3; ++i) COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  member.meet();
  const auto begin = Clock::now();
  (member.is_last() ? other : usual)(member);
  COMMFUSE_REQUIRE(Clock::now() - begin < 20s);
  std::printf("%s\n", member.workspace().failure().text().c_str());
  member.meet();
  member.group().reset();
  COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  std::printf("ok\n");
}
const RankTaskEntry kTokensDiffer("tokens differ", [](const RankArguments& arguments) {
  differ(
      arguments, [](Member& member) { (void)member.call(4); }, [](Member& member) { (void)member.call(5); });
});
const RankTaskEntry kTypesDiffer("types differ", [](const RankArguments& arguments) {
  differ(
      arguments, [](Member& member) { (void)member.call(4); },
      [](Member& member) { (void)member.call(4, DataType::kFp16); });
});

void abort_all(const RankArguments& arguments) {
  Member member(arguments, 60s, arguments.times == 2);
  COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  member.meet();
  if (member.is_last()) {
    // No kernel of this rank is running; those of the others wait for it.
    std::this_thread::sleep_for(500ms);
    std::thread([&] { member.workspace().abort(); }).join();
    COMMFUSE_REQUIRE(member.workspace().failure().code == Code::kAborted);
  } else {
    const auto begin = Clock::now();
    (void)member.call();
    COMMFUSE_REQUIRE(Clock::now() - begin < 10s);
    const Failure failure = member.workspace().failure();
    COMMFUSE_REQUIRE(failure.code == Code::kAborted && failure.origin_rank == arguments.size - 1);
  }
  COMMFUSE_REQUIRE(member.call().code == Code::kAborted);
  member.meet();
  member.group().reset();
  COMMFUSE_REQUIRE(member.call().ok() && member.is_right());
  std::printf("ok\n");
}
const RankTaskEntry kAbort("abort", abort_all);

// ---- tests ----------------------------------------------------------------------------------------------------------

class GroupTrouble : public ProcessGroups, public ::testing::WithParamInterface<MemoryKind> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << "needs a GPU: " << reason;
    ProcessGroups::SetUp();
    deadline_ = std::chrono::seconds(120);
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GroupTrouble, ::testing::Values(MemoryKind::kVmmDescriptor, MemoryKind::kLegacyIpc),
                         [](const auto& chosen) { return std::string(to_string(chosen.param)); });

TEST_P(GroupTrouble, ARankThatIsStoppedMakesTheOthersTimeOut) {
  std::vector<std::string> texts = run("stop", std::vector<RankSetup>(3), GetParam());
  EXPECT_EQ(texts.back(), "");
  texts.pop_back();
  expect_all(texts, "ok\n");
}

TEST_P(GroupTrouble, ARankThatIsLateBySecondsIsWaitedForWithinTheDeadline) {
  expect_all(run("late in time", std::vector<RankSetup>(3), GetParam()), "ok\n");
}

TEST_P(GroupTrouble, ARankThatIsLateByMoreThanTheDeadlineEndsAllAndTheyGoOnAfterAReset) {
  expect_all(run("late", std::vector<RankSetup>(3), GetParam()), "ok\n");
}

TEST_P(GroupTrouble, TokensThatDifferAreReportedByBoth) {
  const auto texts = run("tokens differ", std::vector<RankSetup>(2), GetParam());
  EXPECT_EQ(texts[0],
            "rank 0: call 3 (all_reduce residual_rms_norm) is not the one that rank 1 makes: tokens is 4 here and 5 "
            "there\nok\n");
  EXPECT_EQ(texts[1],
            "rank 1: call 3 (all_reduce residual_rms_norm) is not the one that rank 0 makes: tokens is 5 here and 4 "
            "there\nok\n");
}

TEST_P(GroupTrouble, TypesThatDifferAreReportedByEveryRank) {
  const auto texts = run("types differ", std::vector<RankSetup>(4), GetParam());
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_NE(texts[rank].find("that rank 3 makes: dtype is bf16 here and fp16 there"), std::string::npos)
        << texts[rank];
  }
  EXPECT_NE(texts[3].find("dtype is fp16 here and bf16 there"), std::string::npos) << texts[3];
}

TEST_P(GroupTrouble, AnAbortOfARankWithoutAKernelEndsTheKernelsOfAllOthers) {
  expect_all(run("abort", std::vector<RankSetup>(3), GetParam()), "ok\n");
  expect_all(run("abort", std::vector<RankSetup>(3), GetParam(), 2), "ok\n");
}

}  // namespace
}  // namespace commfuse::gpu
