// Growing, sleeping, starting over and ending, among real processes with a stand-in for the driver whose memory they
// really share.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "process/group_processes.hpp"
#include "process/stand_in.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

/// What calls prepared now are told, and what the device compares it with.
struct Generations {
  std::uint32_t call = 0;
  std::uint32_t device = 0;
  [[nodiscard]] bool match() const { return call == device; }
};
Generations generations_of(Workspace& workspace) {
  device::AllReduceParams params{};
  static_cast<runtime::WorkspaceState&>(workspace).fill(params);
  return {params.generation, params.control->generation};
}
device::Control& control_of(Workspace& workspace) {
  device::AllReduceParams params{};
  static_cast<runtime::WorkspaceState&>(workspace).fill(params);
  return *params.control;
}
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return text_of(error);
  }
  return "nothing";
}
bool fails_with(const std::function<void()>& call, const std::string& part) {
  return thrown_by(call).find(part) != std::string::npos;
}
/// As a call that failed in the middle leaves it.
void damage(Workspace& workspace) {
  workspace.abort();
  control_of(workspace).epoch = 17;
  control_of(workspace).stopped = 1;
  buffers_of(workspace)[static_cast<std::size_t>(workspace.rank())][3] = 5;
}

// ---- tasks ----------------------------------------------------------------------------------------------------------

void reset(const RankArguments& arguments) {
  auto exchange = arguments.meet();
  ProcessGroup group = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
  const auto buffers = buffers_of(group.workspace());
  for (int round = 0; round < 3; ++round) {
    if (round != 1 || exchange->rank() == 0) damage(group.workspace());
    group.reset();
    COMMFUSE_REQUIRE(group.workspace().failure().code == Code::kOk);
    COMMFUSE_REQUIRE(control_of(group.workspace()).epoch == 0 && control_of(group.workspace()).stopped == 0);
    COMMFUSE_REQUIRE(generations_of(group.workspace()).match() && generations_of(group.workspace()).call == 0);
    COMMFUSE_REQUIRE(buffers_of(group.workspace()) == buffers);
    COMMFUSE_REQUIRE(use(*exchange, group.workspace()).empty());
  }
  std::printf("ok\n");
}
const RankTaskEntry kReset("reset", reset);

void grow(const RankArguments& arguments) {
  auto exchange = arguments.meet();
  std::optional<ProcessGroup> made = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
  ProcessGroup& group = *made;
  Workspace& workspace = group.workspace();
  const RegisteredBuffer buffer = group.allocate(4096);
  const int objects = live_objects();
  const std::ptrdiff_t descriptors = open_descriptors();
  control_of(workspace).epoch = 5;
  device::Control* control = &control_of(workspace);
  const std::uint32_t old = generations_of(workspace).call;
  for (const std::uint64_t bytes : {std::uint64_t{10000}, std::uint64_t{5} << 20}) {
    group.grow(bytes);
    COMMFUSE_REQUIRE(workspace.rotation_bytes() >= bytes && workspace.rotation_bytes() < bytes + 256);
    COMMFUSE_REQUIRE(generations_of(workspace).match() && generations_of(workspace).call != old);
    // Old graphs look here to find out that they are old.
    COMMFUSE_REQUIRE(&control_of(workspace) == control && control->epoch == 0);
    COMMFUSE_REQUIRE(use(*exchange, workspace).empty());
    // All of it is there on every rank.
    for (volatile std::uint32_t* start : buffers_of(workspace)) {
      COMMFUSE_REQUIRE(start[3 * workspace.rotation_bytes() / 4 - 1] == 0xffffffffU);
    }
    COMMFUSE_REQUIRE(live_objects() == objects && open_descriptors() == descriptors);
  }
  // Enough is enough.
  const Generations now = generations_of(workspace);
  const auto buffers = buffers_of(workspace);
  group.grow(10000);
  COMMFUSE_REQUIRE(generations_of(workspace).call == now.call && buffers_of(workspace) == buffers);
  COMMFUSE_REQUIRE(fails_with([&] { group.grow(exchange->rank() == 1 ? 1 << 24 : 1 << 25); }, "rank 1 differs"));
  // Registered buffers are not concerned.
  COMMFUSE_REQUIRE(*static_cast<std::uint32_t*>(buffer.pointer(arguments.size - 1)) == 0);
  made.reset();
  COMMFUSE_REQUIRE(live_objects() == 0 && wrong_calls() == 0);
  std::printf("ok\n");
}
const RankTaskEntry kGrow("grow", grow);

/// The driver of one rank has no memory for that.
void grow_in_vain(const RankArguments& arguments) {
  auto exchange = arguments.meet();
  ProcessGroup group = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
  const int objects = live_objects();
  const auto buffers = buffers_of(group.workspace());
  limit_memory(exchange->rank() == 1 ? std::size_t{12} << 20 : 0);
  std::string text;
  for (int i = 0; i < arguments.times; ++i) text = thrown_by([&] { group.grow(std::uint64_t{4} << 20); });
  std::printf("%s\n", text.c_str());
  COMMFUSE_REQUIRE(live_objects() == objects && buffers_of(group.workspace()) == buffers);
  COMMFUSE_REQUIRE(group.workspace().rotation_bytes() == kRotationBytes);
  COMMFUSE_REQUIRE(generations_of(group.workspace()).match() && use(*exchange, group.workspace()).empty());
  std::printf("ok\n");
}
const RankTaskEntry kGrowInVain("grow in vain", grow_in_vain);

void sleep(const RankArguments& arguments) {
  auto exchange = arguments.meet();
  std::optional<ProcessGroup> made = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
  ProcessGroup& group = *made;
  Workspace& workspace = group.workspace();
  const auto buffers = buffers_of(workspace);
  const std::size_t awake = device_bytes();
  const std::ptrdiff_t descriptors = open_descriptors();
  const std::uint32_t old = generations_of(workspace).call;
  for (int round = 0; round < 3; ++round) {
    group.suspend();
    group.suspend();
    exchange->barrier(RankArguments::options().set_up_timeout);
    COMMFUSE_REQUIRE(device_bytes() + 3 * kRotationBytes <= awake);
    COMMFUSE_REQUIRE(workspace.failure().code == Code::kStale);
    COMMFUSE_REQUIRE(workspace.failure().text().find("suspended") != std::string::npos);
    COMMFUSE_REQUIRE(!generations_of(workspace).match());
    COMMFUSE_REQUIRE(fails_with([&] { group.grow(1 << 20); }, "Resume it first"));
    COMMFUSE_REQUIRE(fails_with([&] { group.reset(); }, "Resume it first"));
    group.resume();
    group.resume();
    COMMFUSE_REQUIRE(device_bytes() == awake && open_descriptors() == descriptors);
    COMMFUSE_REQUIRE(workspace.failure().code == Code::kOk && generations_of(workspace).match());
    if (group.kind() == MemoryKind::kLegacyIpc) {
      COMMFUSE_REQUIRE(generations_of(workspace).call != old);  // or old graphs would use old addresses
    } else {
      COMMFUSE_REQUIRE(generations_of(workspace).call == old && buffers_of(workspace) == buffers);
    }
    COMMFUSE_REQUIRE(use(*exchange, workspace).empty());
  }
  if (group.kind() != MemoryKind::kLegacyIpc) {
    // One rank has no memory when it wakes: all sleep on, and wake later.
    group.suspend();
    exchange->barrier(RankArguments::options().set_up_timeout);
    const std::ptrdiff_t asleep = open_descriptors();
    limit_memory(exchange->rank() == 1 ? 1 : 0);
    COMMFUSE_REQUIRE(fails_with([&] { group.resume(); }, "error OutOfMemory"));
    COMMFUSE_REQUIRE(workspace.failure().code == Code::kStale && open_descriptors() == asleep);
    limit_memory(0);
    group.resume();
    COMMFUSE_REQUIRE(buffers_of(workspace) == buffers && use(*exchange, workspace).empty());
  }
  group.suspend();
  made.reset();  // asleep
  COMMFUSE_REQUIRE(live_objects() == 0 && wrong_calls() == 0);
  std::printf("ok\n");
}
const RankTaskEntry kSleep("sleep", sleep);

/// In the middle of sleeping, a rank is lost.
void sleep_without_one(const RankArguments& arguments) {
  auto exchange = arguments.meet();
  std::optional<ProcessGroup> made = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
  made->suspend();
  if (exchange->rank() == arguments.size - 1) ::raise(SIGKILL);
  std::printf("%s\n", thrown_by([&] { made->resume(); }).c_str());
  std::printf("%s\n", thrown_by([&] { made->reset(); }).c_str());
  made.reset();
  std::printf("%d objects, %d wrong calls\n", live_objects(), wrong_calls());
}
const RankTaskEntry kSleepWithoutOne("sleep without one", sleep_without_one);

void end(const RankArguments& arguments) {
  auto exchange = arguments.meet();
  const auto make = [&] {
    return std::make_unique<ProcessGroup>(ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind));
  };
  {
    // Twice, moved from, assigned over.
    auto first = make();
    first->destroy();
    first->destroy();
    first = make();
    ProcessGroup second(std::move(*first));
    *first = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
    second = std::move(*first);
    COMMFUSE_REQUIRE(use(*exchange, second.workspace()).empty());
  }
  COMMFUSE_REQUIRE(live_objects() == 0);
  // The context dies first: what belonged to it must not be given back again.
  auto group = make();
  (void)group->allocate(4096);
  end_context();
  COMMFUSE_REQUIRE(thrown_by([&] { group->reset(); }).find("context") != std::string::npos);
  group.reset();
  COMMFUSE_REQUIRE(live_objects() == 0 && wrong_calls() == 0);
  std::printf("ok\n");
}
const RankTaskEntry kEnd("end", end);

/// Leaves the group and the exchange to the end of the process.
void exit_with_it(const RankArguments& arguments) {
  static std::unique_ptr<Exchange> exchange = arguments.meet();
  static std::optional<ProcessGroup> group = ProcessGroup::create(*exchange, RankArguments::options(), arguments.kind);
  std::atexit([] { std::printf("exit\n"); });
  std::printf("%s\n", use(*exchange, group->workspace()).c_str());
}
const RankTaskEntry kExit("exit", exit_with_it);

// ---- tests ----------------------------------------------------------------------------------------------------------

class GroupLife : public ProcessGroups, public ::testing::WithParamInterface<MemoryKind> {};

TEST_P(GroupLife, StartsOverAfterAFailureOnSomeOrAllRanks) {
  for (const std::size_t size : {2U, 4U}) expect_all(run("reset", std::vector<RankSetup>(size), GetParam()), "ok\n");
}

TEST_P(GroupLife, GrowsAndOldCallsAreOfAnotherGeneration) {
  for (const std::size_t size : {2U, 4U}) expect_all(run("grow", std::vector<RankSetup>(size), GetParam()), "ok\n");
}

TEST_P(GroupLife, StaysAsItIsWhereOneRankHasNoMemoryToGrow) {
  expect_alike(run("grow in vain", {{}, {}, {}}, GetParam(), 5), {"error OutOfMemory", "rank 1: ", "ok\n"});
}

TEST_P(GroupLife, SleepsWithoutMemoryAndWakes) {
  for (const std::size_t size : {2U, 4U}) expect_all(run("sleep", std::vector<RankSetup>(size), GetParam()), "ok\n");
}

TEST_P(GroupLife, CanBeDestroyedWhereARankWasLostAsleep) {
  auto texts = run("sleep without one", {{}, {}, {}}, GetParam());
  texts.pop_back();
  expect_alike(texts, {"error Io", "rank 2", "0 objects, 0 wrong calls"});
}

TEST_P(GroupLife, EndsTwiceInAnyOrderAndAfterItsContext) {
  for (const std::size_t size : {1U, 2U, 4U}) expect_all(run("end", std::vector<RankSetup>(size), GetParam()), "ok\n");
}

TEST_P(GroupLife, MayLastUntilTheProcessEnds) { expect_all(run("exit", {{}, {}}, GetParam()), "\nexit\n"); }

INSTANTIATE_TEST_SUITE_P(Kinds, GroupLife, ::testing::Values(MemoryKind::kVmmDescriptor, MemoryKind::kLegacyIpc),
                         [](const auto& chosen) { return std::string(to_string(chosen.param)); });

}  // namespace
}  // namespace commfuse
