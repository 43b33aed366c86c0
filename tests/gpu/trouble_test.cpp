// Calls that go wrong on a real GPU, all ranks as streams of this process: calls that differ, two calls at once,
// aborts.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "commfuse/engine.hpp"
#include "commfuse/lamport.hpp"
#include "gpu/captured_graph.hpp"
#include "gpu/loopback.hpp"
#include "runtime/driver.hpp"

namespace commfuse::gpu {
namespace {

using namespace std::chrono_literals;
using reference::Values;

constexpr std::int64_t kMostTokens = 64;

class TroubleOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << "needs a GPU: " << reason;
    context_ = std::make_unique<DeviceContext>();
  }

  static KernelSpec shape(Pattern pattern, int world_size, DataType dtype = DataType::kBf16, int hidden_size = 2048) {
    KernelSpec spec;
    spec.pattern = pattern;
    spec.world_size = world_size;
    spec.hidden_size = hidden_size;
    spec.dtype = spec.gamma_dtype = dtype;
    spec.arch = current_arch();
    return spec.normalised();
  }
  /// Both algorithms, all geometries, and the kernel that announces them.
  static std::vector<KernelSpec> kernels_of(const std::vector<KernelSpec>& shapes) {
    std::vector<KernelSpec> kernels = {KernelSpec::call_check(shapes.front().world_size, current_arch())};
    for (KernelSpec spec : shapes) {
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
  static WorkspaceOptions options_for(const std::vector<KernelSpec>& kernels, bool checking,
                                      std::chrono::nanoseconds timeout = 20s) {
    WorkspaceOptions options;
    for (const KernelSpec& spec : kernels) {
      options.rotation_bytes = std::max(options.rotation_bytes, required_rotation_bytes(spec, kMostTokens));
    }
    options.timeout = timeout;
    options.checking = checking;
    return options;
  }
  static PlacedCase placed(const KernelSpec& spec, std::int64_t tokens, std::uint64_t seed = 3) {
    return PlacedCase(reference::make_case(spec, tokens, Values::kNormal, seed));
  }
  /// Waits for the streams and gives the time it took.
  static std::chrono::steady_clock::duration time_to_end(Ranks& ranks) {
    const auto before = std::chrono::steady_clock::now();
    (void)ranks.synchronise();
    return std::chrono::steady_clock::now() - before;
  }

  std::unique_ptr<DeviceContext> context_;
};

TEST_F(TroubleOnGpu, CheckedCallsAreRightAlsoInReplayedGraphsAndDependentLaunches) {
  // More streams than 8 share the driver's queues, and an announcement may then stand behind a call that waits for it.
  for (const int world_size : {2, 3, 8}) {
    const std::vector<KernelSpec> shapes = {shape(Pattern::kResidualRmsNorm, world_size),
                                            shape(Pattern::kAllReduce, world_size)};
    const std::vector<KernelSpec> kernels = kernels_of(shapes);
    const KernelSet set = KernelSet::warm_up(kernels);
    Ranks ranks(world_size, options_for(kernels, true));
    GroupOperation norm(set, ranks, kind_of(shapes[0]));
    GroupOperation plain(set, ranks, kind_of(shapes[1]));
    PlacedCase first = placed(shapes[0], 5);
    PlacedCase second = placed(shapes[1], kMostTokens);
    LaunchOptions dependent = options_of(first.data());
    dependent.dependent_launch = dependent.trigger_early = true;
    const auto all = [&] {
      ASSERT_EQ(norm.launch(first, dependent), "");
      ASSERT_EQ(plain.launch(second, options_of(second.data())), "");
      for (int rank = 0; rank < world_size; ++rank) {
        ASSERT_TRUE(norm.rank(rank).launch({}, 0, {}, ranks.stream(rank)).ok());
      }
    };
    all();
    CapturedGraph graph(ranks, all);
    for (int i = 0; i < 200; ++i) graph.replay(ranks);
    ASSERT_EQ(ranks.synchronise(), "") << world_size;
    EXPECT_EQ(first.check(), "");
    EXPECT_EQ(second.check(), "");
  }
}

TEST_F(TroubleOnGpu, CallsThatDifferInAnythingAreReportedByBothBeforeTheyHang) {
  const KernelSpec usual = shape(Pattern::kResidualRmsNorm, 2);
  const KernelSpec pattern = shape(Pattern::kRmsNorm, 2);
  const KernelSpec dtype = shape(Pattern::kResidualRmsNorm, 2, DataType::kFp16);
  const KernelSpec hidden = shape(Pattern::kResidualRmsNorm, 2, DataType::kBf16, 4096);
  KernelSpec options = usual;
  options.fp32_accumulate = false;
  const std::vector<KernelSpec> kernels = kernels_of({usual, pattern, dtype, hidden, options});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(2, options_for(kernels, true));
  struct Difference {
    KernelSpec other;
    std::int64_t tokens;
    std::string_view field;
  };
  for (const auto& [other, tokens, field] :
       {Difference{usual, 5, "tokens"}, Difference{pattern, 4, "operation"}, Difference{dtype, 4, "dtype"},
        Difference{hidden, 4, "hidden_size"}, Difference{options, 4, "options"}}) {
    AllReduce mine(set, ranks.workspace(0), kind_of(usual));
    AllReduce theirs(set, ranks.workspace(1), kind_of(other));
    PlacedCase my_case = placed(usual, 4);
    PlacedCase their_case = placed(other, tokens);
    ASSERT_TRUE(mine.launch(my_case.tensors(0), 4, options_of(my_case.data()), ranks.stream(0)).ok());
    ASSERT_TRUE(theirs.launch(their_case.tensors(1), tokens, options_of(their_case.data()), ranks.stream(1)).ok());
    EXPECT_LT(time_to_end(ranks), 2s) << field;
    for (const int rank : {0, 1}) {
      const Failure failure = ranks.workspace(rank).failure();
      EXPECT_EQ(failure.code, Code::kMismatch) << failure.text();
      EXPECT_EQ(failure.field, field) << failure.text();
      EXPECT_EQ(failure.awaited_rank, 1 - rank) << failure.text();
    }
    EXPECT_EQ(mine.launch(my_case.tensors(0), 4, {}, ranks.stream(0)).code, Code::kMismatch);
    ranks.group().reset();
    GroupOperation both(set, ranks, kind_of(usual));
    ASSERT_EQ(both.launch(my_case, options_of(my_case.data())), "");
    EXPECT_EQ(ranks.synchronise(), "");
    EXPECT_EQ(my_case.check(), "");
  }
}

TEST_F(TroubleOnGpu, ARankWithoutTokensAmongOthersWithSomeIsReported) {
  const KernelSpec spec = shape(Pattern::kAllReduce, 3);
  const std::vector<KernelSpec> kernels = kernels_of({spec});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(3, options_for(kernels, true));
  GroupOperation operation(set, ranks, kind_of(spec));
  const PlacedCase some = placed(spec, 4);
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(operation.rank(rank).launch(some.tensors(rank), 4, {}, ranks.stream(rank)).ok());
  }
  ASSERT_TRUE(operation.rank(2).launch({}, 0, {}, ranks.stream(2)).ok());
  EXPECT_LT(time_to_end(ranks), 2s);
  for (const int rank : {0, 1, 2}) {
    const Failure failure = ranks.workspace(rank).failure();
    EXPECT_EQ(failure.field, "tokens") << failure.text();
    EXPECT_EQ(failure.own_value, rank == 2 ? 0U : 4U);
  }
}

TEST_F(TroubleOnGpu, TwoStreamsAtOnceEndAllRanksAndAreNamed) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 2);
  const std::vector<KernelSpec> kernels = kernels_of({spec});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(2, options_for(kernels, true));
  GroupOperation operation(set, ranks, kind_of(spec));
  const PlacedCase data = placed(spec, 8);
  const StreamHandle second;
  // Rank 1 comes late, so the first call of rank 0 is under way when the second begins.
  for (CUstream stream : {ranks.stream(0), second.get()}) {
    ASSERT_TRUE(operation.rank(0).launch(data.tensors(0), 8, options_of(data.data()), stream).ok());
  }
  std::this_thread::sleep_for(50ms);
  (void)operation.rank(1).launch(data.tensors(1), 8, options_of(data.data()), ranks.stream(1));
  EXPECT_LT(time_to_end(ranks), 2s);
  COMMFUSE_DRIVER(cuStreamSynchronize(second.get()));
  for (const int rank : {0, 1}) {
    const Failure failure = ranks.workspace(rank).failure();
    EXPECT_EQ(failure.code, Code::kBusy) << failure.text();
    EXPECT_EQ(failure.origin_rank, 0) << failure.text();
  }
  ranks.group().reset();
  PlacedCase after = placed(spec, 8, 4);
  ASSERT_EQ(operation.launch(after, options_of(after.data())), "");
  EXPECT_EQ(ranks.synchronise(), "");
  EXPECT_EQ(after.check(), "");
}

TEST_F(TroubleOnGpu, FiveHundredCallsOnTwoStreamsNeverHang) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 2);
  const std::vector<KernelSpec> kernels = kernels_of({spec});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(2, options_for(kernels, true));
  GroupOperation operation(set, ranks, kind_of(spec));
  const PlacedCase data = placed(spec, 8);
  const StreamHandle second[2];
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    for (int rank = 0; rank < 2; ++rank) {
      const CUstream stream = i % 2 == 0 ? ranks.stream(rank) : second[rank].get();
      refused += operation.rank(rank).launch(data.tensors(rank), 8, options_of(data.data()), stream).ok() ? 0 : 1;
    }
  }
  EXPECT_LT(time_to_end(ranks), 25s);
  for (const StreamHandle& stream : second) COMMFUSE_DRIVER(cuStreamSynchronize(stream.get()));
  for (const int rank : {0, 1}) {
    const Failure failure = ranks.workspace(rank).failure();
    // Where the streams took turns by chance, nothing was wrong.
    EXPECT_TRUE(failure.code == Code::kOk || failure.code == Code::kBusy) << failure.text();
  }
  EXPECT_EQ(refused > 0,
            ranks.workspace(0).failure().code != Code::kOk || ranks.workspace(1).failure().code != Code::kOk);
}

class Aborts : public TroubleOnGpu, public ::testing::WithParamInterface<std::tuple<Algorithm, bool>> {};

TEST_P(Aborts, FromAnotherThreadEndTheWaitingKernelsOfTheWholeGroup) {
  const auto [algorithm, checking] = GetParam();
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 4);
  const std::vector<KernelSpec> kernels = kernels_of({spec});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(4, options_for(kernels, checking, 60s));
  GroupOperation operation(set, ranks, kind_of(spec));
  PlacedCase data = placed(spec, 8);
  LaunchOptions options = options_of(data.data());
  options.algorithm = algorithm;
  // The aborted rank is one of those whose kernels wait, then the one that all wait for, which has no kernel at all.
  for (const int aborted : {1, 3}) {
    for (const int rank : {0, 1, 2}) {
      ASSERT_TRUE(operation.rank(rank).launch(data.tensors(rank), 8, options, ranks.stream(rank)).ok());
    }
    std::this_thread::sleep_for(50ms);
    std::thread([&] { ranks.workspace(aborted).abort(); }).join();
    EXPECT_LT(time_to_end(ranks), 2s) << "rank " << aborted;
    for (const int rank : {0, 1, 2}) {
      const Failure failure = ranks.workspace(rank).failure();
      EXPECT_EQ(failure.code, Code::kAborted) << failure.text();
      EXPECT_EQ(failure.origin_rank, aborted) << failure.text();
    }
    EXPECT_EQ(operation.rank(3).launch(data.tensors(3), 8, options, ranks.stream(3)).ok(), aborted != 3);
    // What is launched after the abort ends too.
    EXPECT_LT(time_to_end(ranks), 2s);
    // A one-shot call for which everything has come waits for nobody: it is right, and ends as if nothing were.
    const bool waits = checking || algorithm == Algorithm::kTwoShot || aborted == 3;
    EXPECT_EQ(ranks.workspace(3).failure().code, waits ? Code::kAborted : Code::kOk);
    ranks.group().reset();
    data.restore();
    ASSERT_EQ(operation.launch(data, options), "");
    EXPECT_EQ(ranks.synchronise(), "");
    EXPECT_EQ(data.check(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpu, Aborts, ::testing::Combine(::testing::Values(Algorithm::kOneShot, Algorithm::kTwoShot), ::testing::Bool()),
    [](const auto& chosen) {
      return std::string(to_string(std::get<0>(chosen.param))) + (std::get<1>(chosen.param) ? "_announced" : "");
    });

TEST_F(TroubleOnGpu, AbortsOfAllRanksFromManyThreadsAtOnceAreOneAbort) {
  const KernelSpec spec = shape(Pattern::kAllReduce, 4);
  const std::vector<KernelSpec> kernels = kernels_of({spec});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(4, options_for(kernels, false, 60s));
  GroupOperation operation(set, ranks, kind_of(spec));
  const PlacedCase data = placed(spec, 8);
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(operation.rank(rank).launch(data.tensors(rank), 8, {}, ranks.stream(rank)).ok());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) threads.emplace_back([&ranks, i] { ranks.workspace(i % 4).abort(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(time_to_end(ranks), 2s);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.workspace(rank).failure().code, Code::kAborted);
}

TEST_F(TroubleOnGpu, LamportInitializeFillsAnyNumberOfBytesAndNothingBehindThem) {
  const StreamHandle stream;
  const auto bytes_at = [](CUdeviceptr address, std::size_t count) {
    std::vector<unsigned char> bytes(count);
    COMMFUSE_DRIVER(cuMemcpyDtoH(bytes.data(), address, count));
    return bytes;
  };
  constexpr std::uint64_t kLarge = (std::uint64_t{4} << 30) + (std::uint64_t{512} << 20);
  runtime::DeviceBuffer memory(kLarge + 64);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3},
                                    std::uint64_t{4}, std::uint64_t{37}, std::uint64_t{4096}, kLarge + 3}) {
    // Around the end, and around 4 GiB where the buffer reaches as far.
    memory.fill(0x5a5a5a5aU);
    ASSERT_TRUE(lamport_initialize(memory.as<void>(), bytes, EmptyValue::kNegativeZero16, stream.get()).ok());
    COMMFUSE_DRIVER(cuStreamSynchronize(stream.get()));
    const std::uint64_t from = bytes < 32 ? 0 : bytes - 32;
    const std::vector<unsigned char> end = bytes_at(memory.pointer() + from, 48);
    for (std::uint64_t i = 0; i < end.size(); ++i) {
      const std::uint64_t at = from + i;
      EXPECT_EQ(end[i], at >= bytes ? 0x5a : at % 2 == 0 ? 0x00 : 0x80) << at << " of " << bytes;
    }
    if (bytes < kLarge) continue;
    const std::vector<unsigned char> middle = bytes_at(memory.pointer() + (std::uint64_t{4} << 30) - 8, 16);
    for (std::size_t i = 0; i < middle.size(); ++i) EXPECT_EQ(middle[i], i % 2 == 0 ? 0x00 : 0x80);
  }
}

TEST_F(TroubleOnGpu, ACheckingWorkspaceRefusesAKernelSetWithoutTheAnnouncement) {
  const KernelSpec spec = shape(Pattern::kAllReduce, 2);
  std::vector<KernelSpec> kernels = kernels_of({spec});
  kernels.erase(kernels.begin());
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(2, options_for(kernels, true));
  try {
    const AllReduce operation(set, ranks.workspace(0), kind_of(spec));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotWarmed);
    EXPECT_NE(std::string(error.what()).find("\"checking\": true"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace commfuse::gpu
