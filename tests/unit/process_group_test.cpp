// What ranks conclude from each other's reports, and the failures that come before any GPU is needed.
#include <gtest/gtest.h>

#include <thread>

#include "commfuse/exchange.hpp"
#include "commfuse/workspace.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/group_plan.hpp"

namespace commfuse::runtime {
namespace {

using namespace std::chrono_literals;

const Outcome kFine;
const Outcome kRefused{Code::kUnsupported, "cuMemCreate(...) failed: not supported", "do this"};

RankDevice device(int number, int sm_count = 132) {
  RankDevice result;
  result.uuid[3] = static_cast<std::byte>(number);
  result.sm_count = sm_count;
  return result;
}

TEST(GroupPlan, AutoTriesDescriptorsFirstAndANamedKindIsTriedAlone) {
  using enum MemoryKind;
  std::vector<RankDevice> devices = {device(1), device(2)};
  EXPECT_EQ(kinds_to_try(kAuto, true, devices), (std::vector{kVmmDescriptor, kLegacyIpc}));
  devices[0].has_fabric = true;
  EXPECT_EQ(kinds_to_try(kAuto, true, devices), (std::vector{kVmmDescriptor, kLegacyIpc}));
  devices[1].has_fabric = true;
  EXPECT_EQ(kinds_to_try(kAuto, true, devices), (std::vector{kVmmDescriptor, kVmmFabric, kLegacyIpc}));
  EXPECT_EQ(kinds_to_try(kAuto, false, devices), std::vector{kVmmFabric});
  EXPECT_EQ(kinds_to_try(kLegacyIpc, true, devices), std::vector{kLegacyIpc});
}

TEST(GroupPlan, TheFirstKindThatWorksOnEveryRankIsChosenAndTheReasonIsKept) {
  const std::vector<Attempt> attempts = {{MemoryKind::kVmmDescriptor, {kFine, kRefused, kFine}},
                                         {MemoryKind::kLegacyIpc, {kFine, kFine, kFine}}};
  ASSERT_NE(chosen(attempts), nullptr);
  EXPECT_EQ(chosen(attempts)->kind, MemoryKind::kLegacyIpc);
  EXPECT_EQ(reason_of(attempts),
            "vmm_descriptor does not work (rank 1: cuMemCreate(...) failed: not supported); legacy_ipc works on all "
            "ranks");
}

TEST(GroupPlan, OneRanksFailureFailsTheKindForAll) {
  const std::vector<Attempt> attempts = {{MemoryKind::kVmmDescriptor, {kRefused, kRefused, kFine}},
                                         {MemoryKind::kLegacyIpc, {kFine, kFine, {Code::kDriver, "101", ""}}}};
  EXPECT_EQ(chosen(attempts), nullptr);
  const Error error = no_kind_error("g", attempts);
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_EQ(error.remedy(), "do this");
  const std::string text = error.what();
  EXPECT_NE(text.find("rank 0: cuMemCreate(...) failed: not supported (likewise 1 more)"), std::string::npos) << text;
  EXPECT_NE(text.find("legacy_ipc does not work (rank 2: 101)"), std::string::npos) << text;
}

TEST(GroupPlan, AFailureWithoutARemedyStillGetsOne) {
  const std::vector<Attempt> attempts = {{MemoryKind::kLegacyIpc, {{Code::kDriver, "101", ""}}}};
  EXPECT_NE(no_kind_error("g", attempts).remedy(), "");
}

TEST(GroupPlan, CapsAreThoseOfTheTightestDevice) {
  const DeviceCaps apart = common_caps(std::vector<RankDevice>{device(1), device(2), device(3, 114)});
  EXPECT_EQ(apart.ranks_on_device, 1);
  EXPECT_EQ(apart.sm_count, 114);
  const DeviceCaps together = common_caps(std::vector<RankDevice>{device(1), device(2), device(1), device(1)});
  EXPECT_EQ(together.ranks_on_device, 3);
  EXPECT_EQ(together.sm_count, 132);
}

TEST(GroupPlan, DevicesAndOutcomesSurviveTheirWayOverTheExchange) {
  RankDevice sent = device(7, 78);
  sent.has_fabric = true;
  const RankDevice got = RankDevice::read(sent.write());
  EXPECT_EQ(got.uuid, sent.uuid);
  EXPECT_EQ(got.sm_count, sent.sm_count);
  EXPECT_TRUE(got.has_fabric);
  const Blob payload(5, std::byte{9});
  const ReadOutcome read = read_outcome(write_outcome(kRefused, payload));
  EXPECT_EQ(read.outcome.code, kRefused.code);
  EXPECT_EQ(read.outcome.trouble, kRefused.trouble);
  EXPECT_EQ(read.outcome.remedy, kRefused.remedy);
  EXPECT_EQ(read.payload, payload);
}

TEST(GroupPlan, MessagesThatDoNotFollowTheFormatAreFailuresOfThatRank) {
  const Blob whole = write_outcome(kRefused, {});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(read_outcome(std::span(whole).first(length)).outcome.code, Code::kInvalidInput) << length;
  }
  EXPECT_EQ(read_outcome(Blob(8, std::byte{0xff})).outcome.code, Code::kInvalidInput);
  Blob blob = device(1).write();
  blob.pop_back();
  EXPECT_THROW((void)RankDevice::read(blob), Error);
  EXPECT_THROW((void)RankDevice::read(device(1, 0).write()), Error);
}

/// What each rank's ProcessGroup::create threw; empty where it threw nothing.
std::vector<std::string> texts_of(std::vector<std::unique_ptr<Exchange>> ranks,
                                  const std::vector<WorkspaceOptions>& options, Code& code) {
  std::vector<std::string> texts(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        (void)ProcessGroup::create(*ranks[rank], options[rank]);
      } catch (const Error& error) {
        texts[rank] = error.what();
        if (rank == 0) code = error.code();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

TEST(ProcessGroupCreation, RanksThatAskForDifferentSizesAllHearIt) {
  const WorkspaceOptions usual{.rotation_bytes = 4096};
  Code code = Code::kOk;
  const auto texts = texts_of(make_thread_exchanges(3), {usual, {.rotation_bytes = 8192}, usual}, code);
  EXPECT_EQ(code, Code::kMismatch);
  EXPECT_NE(texts[0].find("rank 1 differs"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(ProcessGroupCreation, OneRanksWrongOptionIsEveryRanksErrorAndNamesIt) {
  const WorkspaceOptions usual{.rotation_bytes = 4096};
  Code code = Code::kOk;
  // Without a GPU the other ranks have their own trouble to tell; rank 1's stands beside it.
  const auto texts = texts_of(make_thread_exchanges(2), {usual, {.rotation_bytes = 4096, .timeout = 0s}}, code);
  EXPECT_NE(code, Code::kOk);
  EXPECT_NE(texts[0].find("rank 1: the timeout"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[1], texts[0]);
}

/// A thread exchange's all-gather among ranks that say they are on different hosts.
struct Bridge {
  Exchange* exchange = nullptr;
  static int all_gather(void* user, const void* send, void* receive, std::size_t bytes, std::int64_t timeout_ms,
                        unsigned char*) noexcept {
    try {
      const std::span<const std::byte> own(static_cast<const std::byte*>(send), bytes);
      auto* to = static_cast<std::byte*>(receive);
      for (const Blob& blob : static_cast<Bridge*>(user)->exchange->all_gather(own, Timeout(timeout_ms))) {
        to = std::copy(blob.begin(), blob.end(), to);
      }
      return 0;
    } catch (const std::exception&) {
      return 1;
    }
  }
};

TEST(ProcessGroupCreation, RanksOfDifferentHostsAreRefusedAtOnceByName) {
  auto inner = make_thread_exchanges(2);
  std::vector<std::unique_ptr<Exchange>> ranks(2);
  std::vector<Bridge> bridges = {{inner[0].get()}, {inner[1].get()}};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<std::size_t>(rank);
      CallbackExchangeOptions options;
      options.group = "two hosts";
      options.rank = rank;
      options.size = 2;
      options.host = this_host();
      options.host->host += std::to_string(rank);
      options.host->name = "node" + std::to_string(rank);
      ExchangeCallbacks callbacks;
      callbacks.user = &bridges[i];
      callbacks.all_gather = Bridge::all_gather;
      ranks[i] = make_callback_exchange(callbacks, options, 5s);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto before = std::chrono::steady_clock::now();
  Code code = Code::kOk;
  const auto texts = texts_of(std::move(ranks), {{.rotation_bytes = 1}, {.rotation_bytes = 1}}, code);
  EXPECT_EQ(code, Code::kUnsupported);
  EXPECT_NE(texts[0].find("node0"), std::string::npos) << texts[0];
  EXPECT_NE(texts[0].find("node1"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 1s);
}

}  // namespace
}  // namespace commfuse::runtime
