// Announcing calls (templates/call_check.cuh) with all ranks in the simulator: calls that agree pass, calls that differ
// in anything are reported by both sides before they do harm, and so are two calls at once.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "sim/ptx.hpp"

#include "all_reduce.cuh"
#include "call_check.cuh"
#include "runtime/call_header.hpp"
#include "sim/world.hpp"

namespace commfuse::sim {
namespace {

using device::CallCheckParams;
using device::DeviceStatus;
using device::u32;
using device::u64;
namespace ptx = device::ptx;

constexpr u32 kRows = 2;
constexpr u32 kHidden = 8;
constexpr u32 kPoison = 0x0ddba11;

/// The smallest call: one vector a row.
template <u32 kRanks>
struct SmallCall {
  static constexpr u32 kWorldSize = kRanks;
  static constexpr u32 kHiddenSize = kHidden;
  static constexpr device::Type kType = device::Type::kBf16;
  static constexpr bool kFp32Accumulate = true;
  static constexpr device::Norm kNorm = device::Norm::kNone;
  static constexpr bool kResidual = false;
  static constexpr u32 kThreads = 32;
  static constexpr u32 kCluster = 1;
};

using CheckKernel = void (*)(const CallCheckParams&);
using CallKernel = void (*)(const device::AllReduceParams&);

template <std::size_t... kSizes>
constexpr std::array<CheckKernel, sizeof...(kSizes)> check_kernels(std::index_sequence<kSizes...>) {
  return {&device::call_check<SmallCall<kSizes + 1>>...};
}
template <std::size_t... kSizes>
constexpr std::array<CallKernel, sizeof...(kSizes)> call_kernels(std::index_sequence<kSizes...>) {
  return {&device::all_reduce_one_shot<SmallCall<kSizes + 1>>...};
}
constexpr auto kCheckKernels = check_kernels(std::make_index_sequence<device::kMaxWorldSize>());
constexpr auto kCallKernels = call_kernels(std::make_index_sequence<device::kMaxWorldSize>());

KernelSpec small_spec(u32 ranks) {
  KernelSpec spec;
  spec.world_size = static_cast<int>(ranks);
  spec.hidden_size = kHidden;
  return spec;
}

struct Rank {
  device::u8* memory = nullptr;
  device::Control* control = nullptr;
  device::HostMailbox* mailbox = nullptr;
  u32* in = nullptr;
  u32* out = nullptr;
};

constexpr u64 kRotationBytes = 256 * device::kMaxWorldSize;

class Group {
 public:
  explicit Group(u32 ranks, const Options& options, u64 timeout_ns = 1'000'000'000'000)
      : world_(ranks, options), timeout_ns_(timeout_ns) {
    for (u32 rank = 0; rank < ranks; ++rank) {
      Rank made;
      const u64 bytes = 3 * kRotationBytes + sizeof(device::PeerSignals);
      made.memory = world_.allocate<device::u8>(rank, bytes, "rotation buffers and signals");
      world_.memset(made.memory, 0xff, bytes);
      made.control = world_.allocate<device::Control>(rank, 1, "control");
      world_.memset(made.control, 0, sizeof(device::Control));
      made.mailbox = world_.allocate_host<device::HostMailbox>(1, "mailbox");
      made.in = world_.allocate<u32>(rank, kWords, "in");
      made.out = world_.allocate<u32>(rank, kWords, "out");
      const std::vector<u32> ones(kWords, 0x3f803f80U);
      world_.write(made.in, ones.data(), kWords * 4);
      const std::vector<u32> poison(kWords, kPoison);
      world_.write(made.out, poison.data(), kWords * 4);
      ranks_.push_back(made);
    }
  }

  [[nodiscard]] World& world() { return world_; }
  [[nodiscard]] const Rank& rank(u32 rank) const { return ranks_[rank]; }
  [[nodiscard]] device::HostMailbox mailbox(u32 rank) const { return *ranks_[rank].mailbox; }
  [[nodiscard]] u32 size() const { return static_cast<u32>(ranks_.size()); }

  /// As if so many calls had been made.
  void set_epoch(u32 rank, u64 epoch) { world_.write(&ranks_[rank].control->epoch, &epoch, sizeof(epoch)); }
  void set_generation(u32 rank, u32 generation) {
    world_.write(&ranks_[rank].control->generation, &generation, sizeof(generation));
    generation_[rank] = generation;
  }

  [[nodiscard]] runtime::CallHeader header(u32 tokens) const {
    return {small_spec(size()), static_cast<std::int64_t>(tokens), 0, 1e-6F};
  }
  [[nodiscard]] CallCheckParams params(u32 rank, const runtime::CallHeader& header) const {
    CallCheckParams params{};
    for (u32 peer = 0; peer < size(); ++peer) {
      params.call.peer_buffer[peer] = reinterpret_cast<u64>(ranks_[peer].memory);
    }
    params.call.rotation_bytes = kRotationBytes;
    params.call.control = ranks_[rank].control;
    params.call.mailbox = ranks_[rank].mailbox;
    params.call.timeout_ns = timeout_ns_;
    params.call.rank = rank;
    params.call.generation = generation_[rank];
    params.call.operation = header.word[device::kOperationWord];
    params.call.in = reinterpret_cast<const device::Vec16*>(ranks_[rank].in);
    params.call.out = reinterpret_cast<device::Vec16*>(ranks_[rank].out);
    params.call.tokens = kRows;
    std::memcpy(params.header, header.word, sizeof(params.header));
    return params;
  }
  [[nodiscard]] CallCheckParams announcement(u32 rank, const runtime::CallHeader& header) const {
    CallCheckParams announced = params(rank, header);
    announced.call.operation |= device::kAnnouncement;
    return announced;
  }

  void announce(u32 rank, const runtime::CallHeader& header) {
    world_.launch(rank, kCheckKernels[size() - 1], announcement(rank, header), {.threads = 32, .name = "check"});
  }
  void call(u32 rank, const runtime::CallHeader& header) {
    world_.launch(rank, kCallKernels[size() - 1], params(rank, header).call, {.threads = 32, .name = "call"});
  }
  void announce_and_call(u32 rank, const runtime::CallHeader& header) {
    announce(rank, header);
    call(rank, header);
  }
  /// Both on a stream of their own: they start as soon as the kernel that was launched before has started.
  void announce_and_call_at_once(u32 rank, const runtime::CallHeader& header) {
    const CallCheckParams both = params(rank, header);
    const u32 size_index = size() - 1;
    world_.launch(rank,
                  [both, size_index] {
                    ptx::release_dependents();
                    kCheckKernels[size_index](both);
                    // What the end of a kernel does.
                    ptx::fence_sys();
                    ptx::block_barrier();
                    ptx::fence_sys();
                    kCallKernels[size_index](both.call);
                  },
                  {.threads = 32, .dependent = true, .name = "check and call"});
  }

  /// As Workspace::abort() does it.
  void abort(u32 rank) {
    ranks_[rank].mailbox->abort = 1;
    const u32 word = static_cast<u32>(DeviceStatus::kPeerAborted) << device::kStopRankBits | rank;
    for (u32 peer = 0; peer < size(); ++peer) {
      auto* signals = reinterpret_cast<device::PeerSignals*>(ranks_[peer].memory + 3 * kRotationBytes);
      if (peer != rank) world_.write(&signals->stop, &word, sizeof(word));
    }
  }

  [[nodiscard]] bool is_untouched(u32 rank) const {
    for (const u32 word : world_.read(ranks_[rank].out, kWords)) {
      if (word != kPoison) return false;
    }
    return true;
  }

 private:
  static constexpr u32 kWords = kRows * kHidden / 2;

  World world_;
  u64 timeout_ns_;
  std::vector<Rank> ranks_;
  std::array<u32, device::kMaxWorldSize> generation_{};
};

/// Six calls, two of them without tokens, from just before the end of the low word of the epoch.
void expect_that_equal_calls_pass(u32 ranks) {
  for (const Options& options : executions(ranks <= 4 ? 32 : 8, {.seed = 100 * ranks})) {
    Group group(ranks, options);
    // Numbers and values that look like an empty place, and the end of the low word.
    for (u32 rank = 0; rank < group.size(); ++rank) group.set_epoch(rank, 0xfffffffdU);
    for (int i = 0; i < 6; ++i) {
      auto header = group.header(i % 3 == 1 ? 0 : kRows);
      header.word[device::kEpsWord] = 0xffffffffU;
      for (u32 rank = 0; rank < group.size(); ++rank) {
        group.announce(rank, header);
        if (i % 3 != 1) group.call(rank, header);
      }
    }
    group.world().run();
    for (u32 rank = 0; rank < group.size(); ++rank) {
      EXPECT_EQ(group.mailbox(rank).status, 0U) << describe(options);
      EXPECT_EQ(group.rank(rank).control->epoch, 0x100000001U) << describe(options);
      EXPECT_EQ(group.rank(rank).control->checks, 6U);
      EXPECT_FALSE(group.is_untouched(rank));
    }
  }
}

class CallCheckOf : public ::testing::TestWithParam<u32> {};

TEST_P(CallCheckOf, LetsCallsThatAgreePassInEveryExecution) { expect_that_equal_calls_pass(GetParam()); }
TEST(CallCheck, LetsASingleRankPass) { expect_that_equal_calls_pass(1); }

TEST_P(CallCheckOf, ReportsADifferenceInAnyWordOnEveryRankBeforeTheCall) {
  const u32 ranks = GetParam();
  for (u32 word = 0; word < device::kCallWords; ++word) {
    const Options options = executions(4, {.seed = 7000 + word * 16 + ranks})[word % 4];
    const u32 odd = word % ranks;
    Group group(ranks, options);
    if (word == device::kGenerationWord) group.set_generation(odd, 5);
    if (word == device::kEpochLowWord) group.set_epoch(odd, 5);
    if (word == device::kEpochHighWord) group.set_epoch(odd, u64{5} << 32);
    for (u32 rank = 0; rank < ranks; ++rank) {
      auto header = group.header(kRows);
      if (rank == odd) header.word[word] = 5;
      group.announce_and_call(rank, header);
      group.announce_and_call(rank, group.header(kRows));
    }
    group.world().run();
    for (u32 rank = 0; rank < ranks; ++rank) {
      const device::HostMailbox mailbox = group.mailbox(rank);
      const u32 usual = group.header(kRows).word[word];
      EXPECT_EQ(mailbox.status, static_cast<u32>(DeviceStatus::kMismatch)) << "word " << word << describe(options);
      EXPECT_EQ(mailbox.field, word);
      EXPECT_EQ(mailbox.own_value, rank == odd ? 5 : usual);
      EXPECT_EQ(mailbox.other_value, rank == odd ? usual : 5);
      if (rank != odd) {
        EXPECT_EQ(mailbox.awaited_rank, odd);
      }
      EXPECT_TRUE(group.is_untouched(rank)) << "word " << word;
      EXPECT_EQ(group.rank(rank).control->checks, 1U);
    }
  }
}

TEST_P(CallCheckOf, OfSeveralDifferencesReportsTheOneThatExplainsTheOthers) {
  Group group(GetParam(), {.seed = GetParam()});
  for (u32 rank = 0; rank < group.size(); ++rank) {
    auto header = group.header(rank == 0 ? 1 : kRows);
    header.word[device::kAlgorithmWord] = rank == 0 ? 0 : 1;
    group.announce_and_call(rank, header);
  }
  group.world().run();
  EXPECT_EQ(group.mailbox(0).field, device::kTokensWord);
  EXPECT_EQ(group.mailbox(1).field, device::kTokensWord);
}

TEST_P(CallCheckOf, ARankThatMakesFewerCallsIsNamedAfterTheDeadline) {
  const u32 ranks = GetParam();
  for (const Options& options : executions(8, {.seed = 50 * ranks})) {
    Group group(ranks, options, 100'000);
    for (int i = 0; i < 3; ++i) {
      for (u32 rank = 0; rank < ranks; ++rank) {
        if (i < 2 || rank != 0) group.announce_and_call(rank, group.header(kRows));
      }
    }
    group.world().run();
    EXPECT_EQ(group.mailbox(0).status, 0U);
    for (u32 rank = 1; rank < ranks; ++rank) {
      EXPECT_EQ(group.mailbox(rank).status, static_cast<u32>(DeviceStatus::kTimeout)) << describe(options);
      EXPECT_EQ(group.mailbox(rank).operation, device::kAnnouncement);
      EXPECT_EQ(group.mailbox(rank).awaited_rank, 0U);
      EXPECT_EQ(group.mailbox(rank).epoch_low, 2U);
    }
  }
}

TEST_P(CallCheckOf, TwoCallsAtOnceOfOneRankEndAllRanks) {
  const u32 ranks = GetParam();
  u32 noticed = 0;
  const auto all = executions(ranks <= 4 ? 24 : 8, {.seed = 900 * ranks, .subject_rank = 0});
  for (const Options& options : all) {
    // So long that only the group itself can have ended it.
    Group group(ranks, options, 1'000'000'000'000);
    for (int i = 0; i < 2; ++i) group.announce_and_call_at_once(0, group.header(kRows));
    for (u32 rank = 1; rank < ranks; ++rank) {
      for (int i = 0; i < 2; ++i) group.announce_and_call(rank, group.header(kRows));
    }
    group.world().run();
    EXPECT_LT(group.world().now_ns(), 100'000'000'000U) << describe(options);
    // Now and then the first has ended before the second begins: nothing is wrong then.
    if (group.mailbox(0).status == 0) {
      EXPECT_EQ(group.rank(0).control->epoch, 2U);
      continue;
    }
    ++noticed;
    for (u32 rank = 0; rank < ranks; ++rank) {
      const DeviceStatus expected = rank == 0 ? DeviceStatus::kBusy : DeviceStatus::kPeerBusy;
      EXPECT_EQ(group.mailbox(rank).status, static_cast<u32>(expected)) << rank << describe(options);
      EXPECT_EQ(group.mailbox(rank).awaited_rank, 0U);
      EXPECT_EQ(group.rank(rank).control->stopped, 1U) << rank << describe(options);
    }
  }
  EXPECT_GE(noticed, all.size() / 2);
}

INSTANTIATE_TEST_SUITE_P(Sim, CallCheckOf, ::testing::Range(2U, device::kMaxWorldSize + 1));

/// One rank is waited for, one is aborted, the others hear of it.
TEST(GroupAbort, AnAbortOfOneRankEndsTheAnnouncementsAndCallsOfAll) {
  for (u32 ranks = 3; ranks <= device::kMaxWorldSize; ++ranks) {
    for (const bool announced : {false, true}) {
      for (const Options& options : executions(8, {.seed = 300 * ranks})) {
        Group group(ranks, options, 1'000'000'000'000);
        const u32 absent = ranks - 1;
        for (u32 rank = 0; rank < absent; ++rank) {
          if (announced) group.announce(rank, group.header(kRows));
          group.call(rank, group.header(kRows));
        }
        group.world().at(1'000'000, [&] { group.abort(1); });
        group.world().run();
        EXPECT_LT(group.world().now_ns(), 100'000'000'000U) << describe(options);
        for (u32 rank = 0; rank < absent; ++rank) {
          const DeviceStatus expected = rank == 1 ? DeviceStatus::kAborted : DeviceStatus::kPeerAborted;
          EXPECT_EQ(group.mailbox(rank).status, static_cast<u32>(expected)) << describe(options);
          EXPECT_EQ(group.mailbox(rank).awaited_rank, rank == 1 ? absent : 1U) << describe(options);
          EXPECT_EQ(group.rank(rank).control->stopped, 1U);
        }
      }
    }
  }
}

/// A faulty announcement: one place for headers instead of two.
template <class Config>
void with_one_place(const CallCheckParams& params) {
  // Always an even number of announcements: place 0.
  const u32 checks = ptx::load_weak(&params.call.control->checks);
  if (checks % 2 == 1 && ptx::thread_index() == 0) ptx::store_weak(&params.call.control->checks, checks + 1);
  ptx::warp_barrier();
  device::call_check<Config>(params);
}

TEST(CallCheckPlantedFault, OnePlaceTooFewIsCaught) {
  bool caught = false;
  for (const Options& options : executions(400)) {
    Group group(3, options, 1'000'000);
    try {
      for (u32 i = 0; i < 6; ++i) {
        for (u32 rank = 0; rank < 3; ++rank) {
          // Announcements of calls without tokens: nothing else keeps the ranks in step.
          auto header = group.header(0);
          header.word[device::kWidthWord] = i;
          group.world().launch(rank, &with_one_place<SmallCall<3>>, group.params(rank, header), {.threads = 32});
        }
      }
      group.world().run();
    } catch (const Failure&) {
      caught = true;
    }
    for (u32 rank = 0; rank < 3; ++rank) caught |= group.mailbox(rank).status != 0;
    if (caught) break;
  }
  EXPECT_TRUE(caught);
}

}  // namespace
}  // namespace commfuse::sim
