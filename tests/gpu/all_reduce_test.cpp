// All-reduce on a real GPU, all ranks as streams of this process.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "commfuse/engine.hpp"
#include "gpu/captured_graph.hpp"
#include "gpu/loopback.hpp"
#include "gpu/on_gpu.hpp"
#include "runtime/driver.hpp"

namespace commfuse::gpu {
namespace {

using reference::Values;

class AllReduceOnGpu : public OnGpu {
 protected:
  static KernelSpec shape(Pattern pattern, int world_size, int hidden_size, DataType dtype = DataType::kBf16) {
    return shape_of(Op::kAllReduce, pattern, world_size, hidden_size, dtype);
  }
};

TEST_F(AllReduceOnGpu, EveryPatternAgreesWithTheReferenceBitForBit) {
  for (const DataType dtype : {DataType::kBf16, DataType::kFp16}) {
    std::vector<KernelSpec> shapes;
    for (const Pattern pattern : patterns(Op::kAllReduce)) shapes.push_back(shape(pattern, 4, 2048, dtype));
    expect_right(shapes, {1, 3, 130}, Values::kOutliers);
    expect_right(shapes, {5}, Values::kAnyBits);
  }
}

TEST_F(AllReduceOnGpu, EveryOptionAgreesWithTheReferenceBitForBit) {
  std::vector<KernelSpec> shapes;
  for (const Pattern pattern : patterns(Op::kAllReduce)) {
    KernelSpec scattered = shape(pattern, 3, 1536);
    scattered.residual_scattered = true;
    shapes.push_back(scattered.normalised());
    KernelSpec weights = shape(pattern, 3, 1536);
    weights.gamma_dtype = DataType::kFp32;
    weights.weight_bias = true;
    shapes.push_back(weights.normalised());
    KernelSpec narrow = shape(pattern, 3, 1536, DataType::kFp16);
    narrow.fp32_accumulate = false;
    shapes.push_back(narrow);
  }
  for (const QuantLayout layout : {QuantLayout::kSwizzled8x4, QuantLayout::kLinear}) {
    KernelSpec fp4 = shape(Pattern::kResidualRmsNormOutFp4, 3, 1536);
    fp4.quant_layout = layout;
    shapes.push_back(fp4);
  }
  for (const int group : {32, 64, 256}) {
    KernelSpec grouped = shape(Pattern::kResidualRmsNormFp8Group, 3, 1536);
    grouped.group_size = group;
    shapes.push_back(grouped);
  }
  std::set<std::string> seen;
  std::vector<KernelSpec> unique;
  for (const KernelSpec& spec : shapes) {
    if (seen.insert(spec.name()).second) unique.push_back(spec);
  }
  expect_right(unique, {2, 129}, Values::kNormal);
}

/// Direct kernels with all tensors registered, with inputs or outputs alone, with a mixture, and with none.
constexpr std::uint32_t kAllTensors = (1U << device::kDirectTensors) - 1;
constexpr std::uint32_t kInputAlone = device::bit_of(device::Direct::kIn);
constexpr std::array kRegistered = {kAllTensors, kInputAlone, kAllTensors & ~kInputAlone, 0x29U, 0x16U, 0U};

std::vector<KernelSpec> direct_kernels_of(std::vector<KernelSpec> shapes) {
  for (KernelSpec& spec : shapes) {
    spec.algorithm = Algorithm::kDirect;
    spec.threads = geometries(spec).front().threads;
    spec.cluster = geometries(spec).front().cluster;
  }
  return shapes;
}

TEST_F(AllReduceOnGpu, DirectKernelsAgreeWithTheReferenceWhateverIsRegistered) {
  for (const int world_size : {1, 2, 4, 8}) {
    std::vector<KernelSpec> shapes;
    for (const Pattern pattern : patterns(Op::kAllReduce)) {
      KernelSpec spec = shape(pattern, world_size, 1536, world_size == 2 ? DataType::kFp16 : DataType::kBf16);
      shapes.push_back(spec);
      spec.residual_scattered = true;
      if (spec.normalised().residual_scattered) shapes.push_back(spec.normalised());
    }
    const std::vector<KernelSpec> kernels = direct_kernels_of(shapes);
    const KernelSet set = KernelSet::warm_up(kernels);
    Ranks ranks(world_size, bytes_for(kernels, 131));
    std::uint64_t seed = 1;
    for (const KernelSpec& spec : kernels) {
      GroupOperation operation(set, ranks, kind_of(spec));
      for (const std::int64_t tokens : {1, 3, 131}) {
        const std::uint32_t registered = kRegistered[seed % kRegistered.size()];
        ++seed;
        PlacedCase placed(reference::make_case(spec, tokens, seed % 4 == 0 ? Values::kAnyBits : Values::kOutliers, seed,
                                               seed % 2 == 0));
        placed.register_with(ranks.group(), registered);
        LaunchOptions options = options_of(placed.data(), seed % 2 == 0);
        options.dependent_launch = options.trigger_early = seed % 3 == 0;
        for (int call = 0; call < 3; ++call) ASSERT_EQ(operation.launch(placed, options), "");
        ASSERT_EQ(ranks.synchronise(), "");
        ASSERT_EQ(placed.check(), "") << spec.name() << ", registered " << registered;
        placed.unregister(ranks.group());
      }
    }
  }
}

TEST_F(AllReduceOnGpu, DirectCallsWithEverythingRegisteredNeedNoRotationBuffer) {
  const std::vector<KernelSpec> kernels = direct_kernels_of({shape(Pattern::kResidualRmsNorm, 4, 2048)});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(4, 256);
  GroupOperation operation(set, ranks, kind_of(kernels.front()));
  PlacedCase placed(reference::make_case(kernels.front(), 300, Values::kNormal, 5));
  placed.register_with(ranks.group(), kAllTensors & ~device::bit_of(device::Direct::kNormOut));
  EXPECT_NE(operation.launch(placed, options_of(placed.data())).find("tokens need more bytes"), std::string::npos)
      << operation.launch(placed, options_of(placed.data()));
  placed.unregister(ranks.group());
  placed.register_with(ranks.group());
  ASSERT_EQ(operation.launch(placed, options_of(placed.data())), "");
  ASSERT_EQ(ranks.synchronise(), "");
  EXPECT_EQ(placed.check(), "");
  placed.unregister(ranks.group());
}

TEST_F(AllReduceOnGpu, LargeCallsWithRegisteredTensorsAreDirectWhereTheDeploymentHasThem) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 4, 8192);
  std::vector<KernelSpec> kernels = kernels_of({spec});
  for (const KernelSpec& direct : direct_kernels_of({spec})) kernels.push_back(direct);
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(4, bytes_for(kernels, 512));
  GroupOperation operation(set, ranks, kind_of(spec));
  const auto chosen = [&](std::int64_t tokens, bool registered) {
    AllReduce& rank = operation.rank(0);
    return rank.kernels()[static_cast<std::size_t>(rank.plan(tokens, {}, registered).kernel)].algorithm;
  };
  EXPECT_EQ(chosen(512, true), Algorithm::kDirect);
  EXPECT_EQ(chosen(512, false), Algorithm::kTwoShot);
  EXPECT_EQ(chosen(1, true), Algorithm::kOneShot);
  PlacedCase placed(reference::make_case(spec, 512, Values::kNormal, 6));
  placed.register_with(ranks.group());
  LaunchOptions options = options_of(placed.data());
  options.algorithm.reset();
  ASSERT_EQ(operation.launch(placed, options), "");
  ASSERT_EQ(ranks.synchronise(), "");
  EXPECT_EQ(placed.check(), "");
  placed.unregister(ranks.group());
}

class WorldSizes : public AllReduceOnGpu, public ::testing::WithParamInterface<int> {};

TEST_P(WorldSizes, AgreeWithTheReferenceBitForBit) {
  const int world_size = GetParam();
  std::vector<KernelSpec> shapes;
  for (const int hidden_size : {64, 2880, 8192}) {
    for (const Pattern pattern : {Pattern::kAllReduce, Pattern::kResidualRmsNorm}) {
      shapes.push_back(shape(pattern, world_size, hidden_size));
    }
  }
  shapes.push_back(shape(Pattern::kResidualRmsNorm, world_size, 4096, DataType::kFp32));
  expect_right(shapes, {1, 2, 17, 256}, Values::kNormal);
  expect_right(shapes, {3}, Values::kSubnormals);
  expect_right(shapes, {3}, Values::kNegativeZeros);
}

INSTANTIATE_TEST_SUITE_P(Gpu, WorldSizes, ::testing::Values(1, 2, 3, 4, 6, 8, 12, 16));

TEST_F(AllReduceOnGpu, HiddenSizesOfLiveModelsAgreeWithTheReference) {
  std::vector<KernelSpec> shapes;
  for (const int hidden_size : {8, 512, 1536, 3072, 3584, 5120, 7168, 10752, 16384, 18432, 65536}) {
    shapes.push_back(shape(Pattern::kResidualRmsNorm, 2, hidden_size));
  }
  expect_right(shapes, {1, 33}, Values::kNormal);
}

TEST_F(AllReduceOnGpu, GraphReplayedAThousandTimesStaysRight) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 4, 4096);
  const std::vector<KernelSpec> kernels = kernels_of({spec});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(4, bytes_for(kernels, 64));
  GroupOperation operation(set, ranks, kind_of(spec));
  KernelSpec two = spec;
  two.algorithm = Algorithm::kTwoShot;
  PlacedCase small(reference::make_case(spec, 1, Values::kNormal, 5));
  PlacedCase large(reference::make_case(two, 64, Values::kNormal, 6));
  CapturedGraph graph(ranks, [&] {
    ASSERT_EQ(operation.launch(small, options_of(small.data())), "");
    ASSERT_EQ(operation.launch(large, options_of(large.data())), "");
  });
  for (int i = 0; i < 1000; ++i) {
    graph.replay(ranks);
    if (i % 250 != 0 && i != 999) continue;
    ASSERT_EQ(ranks.synchronise(), "");
    ASSERT_EQ(small.check(), "");
    ASSERT_EQ(large.check(), "");
    small.restore();
    large.restore();
  }
}

TEST_F(AllReduceOnGpu, TwentyGraphsReplayedInRandomOrderStayRight) {
  const std::vector<KernelSpec> shapes = {shape(Pattern::kResidualRmsNorm, 2, 2880),
                                          shape(Pattern::kAllReduce, 2, 1024)};
  const std::vector<KernelSpec> kernels = kernels_of(shapes);
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(2, bytes_for(kernels, 2048));
  GroupOperation norm(set, ranks, kind_of(shapes[0]));
  GroupOperation plain(set, ranks, kind_of(shapes[1]));
  std::vector<std::unique_ptr<PlacedCase>> cases;
  std::vector<std::unique_ptr<CapturedGraph>> graphs;
  std::uint64_t seed = 100;
  for (const std::int64_t tokens : {1, 2, 3, 17, 64, 128, 255, 512, 1025, 2048}) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      KernelSpec spec = shapes[i];
      spec.algorithm = tokens % 2 == 0 ? Algorithm::kTwoShot : Algorithm::kOneShot;
      cases.push_back(std::make_unique<PlacedCase>(reference::make_case(spec, tokens, Values::kNormal, ++seed)));
      const PlacedCase& placed = *cases.back();
      GroupOperation& operation = i == 0 ? norm : plain;
      graphs.push_back(std::make_unique<CapturedGraph>(
          ranks, [&] { ASSERT_EQ(operation.launch(placed, options_of(placed.data())), ""); }));
    }
  }
  std::mt19937 random(7);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 200; ++i) graphs[random() % graphs.size()]->replay(ranks);
    for (const auto& graph : graphs) graph->replay(ranks);
    ASSERT_EQ(ranks.synchronise(), "");
    for (const auto& placed : cases) {
      ASSERT_EQ(placed->check(), "");
      placed->restore();
    }
  }
}

// Offsets beyond 2^31 bytes and, in the rotation buffers, beyond 2^32.
TEST_F(AllReduceOnGpu, MatricesOfMoreThanTwoGibibytesAreRight) {
  constexpr std::int64_t kRows = 1024;
  constexpr std::int64_t kRepeats = 140;
  constexpr std::int64_t kTokens = kRows * kRepeats;
  KernelSpec spec = shape(Pattern::kResidualRmsNorm, 2, 8192);
  const std::vector<KernelSpec> kernels = kernels_of({spec});
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(2, bytes_for(kernels, kTokens));
  GroupOperation operation(set, ranks, kind_of(spec));
  // Rows are independent of each other: a matrix of repeated rows has repeated results.
  const reference::Case part = reference::make_case(spec, kRows, Values::kNormal, 77);
  const std::size_t bytes = part.tensor(0, reference::TensorId::kIn).bytes.size();
  struct Tensors {
    runtime::DeviceBuffer in, residual, residual_out, norm_out, gamma;
  };
  std::vector<Tensors> tensors(2);
  const auto repeat = [&](const reference::Bytes& source, runtime::DeviceBuffer& target) {
    target = runtime::DeviceBuffer(bytes * kRepeats);
    target.upload(source.data(), bytes);
    for (std::size_t i = 1; i < kRepeats; ++i) {
      COMMFUSE_DRIVER(cuMemcpyDtoD(target.pointer() + i * bytes, target.pointer(), bytes));
    }
  };
  for (int rank = 0; rank < 2; ++rank) {
    Tensors& mine = tensors[static_cast<std::size_t>(rank)];
    repeat(part.tensor(rank, reference::TensorId::kIn).bytes, mine.in);
    repeat(part.tensor(rank, reference::TensorId::kResidualIn).bytes, mine.residual);
    mine.residual_out = runtime::DeviceBuffer(bytes * kRepeats);
    mine.norm_out = runtime::DeviceBuffer(bytes * kRepeats);
    const reference::Bytes& gamma = part.tensor(rank, reference::TensorId::kGamma).bytes;
    mine.gamma = runtime::DeviceBuffer(gamma.size());
    mine.gamma.upload(gamma.data(), gamma.size());
  }
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    LaunchOptions options;
    options.eps = part.eps;
    options.algorithm = algorithm;
    for (Tensors& each : tensors) {
      each.residual_out.fill(0xa5a5a5a5U);
      each.norm_out.fill(0xa5a5a5a5U);
    }
    for (int rank = 0; rank < 2; ++rank) {
      const Tensors& mine = tensors[static_cast<std::size_t>(rank)];
      AllReduceTensors arguments;
      arguments.in = mine.in.as();
      arguments.residual_in = mine.residual.as();
      arguments.gamma = mine.gamma.as();
      arguments.residual_out = mine.residual_out.as();
      arguments.norm_out = mine.norm_out.as();
      const Status status = operation.rank(rank).launch(arguments, kTokens, options, ranks.stream(rank));
      ASSERT_TRUE(status.ok()) << status.text();
    }
    ASSERT_EQ(ranks.synchronise(), "");
    for (int rank = 0; rank < 2; ++rank) {
      const Tensors& mine = tensors[static_cast<std::size_t>(rank)];
      for (const std::size_t i : {std::size_t{0}, std::size_t{kRepeats / 2}, std::size_t{kRepeats - 1}}) {
        reference::Bytes actual(bytes);
        COMMFUSE_DRIVER(cuMemcpyDtoH(actual.data(), mine.residual_out.pointer() + i * bytes, bytes));
        ASSERT_EQ(check_output(part, rank, reference::TensorId::kResidualOut, actual), "") << "part " << i;
        COMMFUSE_DRIVER(cuMemcpyDtoH(actual.data(), mine.norm_out.pointer() + i * bytes, bytes));
        ASSERT_EQ(check_output(part, rank, reference::TensorId::kNormOut, actual), "") << "part " << i;
      }
    }
  }
}

void CUDA_CB sleep_a_little(void* microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::uintptr_t>(microseconds)));
}

TEST_F(AllReduceOnGpu, TenThousandMixedCallsWithADelayedRankStayRight) {
  std::vector<KernelSpec> shapes = {
      shape(Pattern::kAllReduce, 3, 2880),
      shape(Pattern::kResidualRmsNorm, 3, 4096),
      shape(Pattern::kResidualRmsNormOutFp8, 3, 1536, DataType::kFp16),
      shape(Pattern::kResidualRmsNormFp4, 3, 768),
      shape(Pattern::kAllReduce, 3, 512, DataType::kFp32),
      shape(Pattern::kResidualRmsNormFp8Block, 3, 7168),
  };
  const std::vector<KernelSpec> kernels = kernels_of(shapes);
  const KernelSet set = KernelSet::warm_up(kernels);
  Ranks ranks(3, bytes_for(kernels, 300));
  std::vector<std::unique_ptr<GroupOperation>> operations;
  std::vector<std::unique_ptr<PlacedCase>> cases;
  std::vector<std::size_t> operation_of_case;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    operations.push_back(std::make_unique<GroupOperation>(set, ranks, kind_of(shapes[i])));
    for (const std::int64_t tokens : {1, 2, 7, 64, 300}) {
      shapes[i].algorithm = tokens % 2 == 0 ? Algorithm::kTwoShot : Algorithm::kOneShot;
      cases.push_back(
          std::make_unique<PlacedCase>(reference::make_case(shapes[i], tokens, Values::kAnyBits, 7 * i + 1)));
      operation_of_case.push_back(i);
    }
  }
  std::mt19937 random(42);
  for (int call = 0; call < 10000; ++call) {
    const std::size_t i = random() % cases.size();
    if (random() % 50 == 0) {
      COMMFUSE_DRIVER(cuLaunchHostFunc(ranks.stream(static_cast<int>(random() % 3)), sleep_a_little,
                                       reinterpret_cast<void*>(std::uintptr_t{random() % 400})));
    }
    LaunchOptions options = options_of(cases[i]->data());
    options.dependent_launch = options.trigger_early = random() % 2 == 0;
    ASSERT_EQ(operations[operation_of_case[i]]->launch(*cases[i], options), "");
    if (call % 1000 != 999) continue;
    ASSERT_EQ(ranks.synchronise(), "");
    for (const auto& placed : cases) {
      ASSERT_EQ(placed->check(), "") << "after call " << call;
      placed->restore();
    }
    // Every case once more, so that none is left unwritten at the next check.
    for (std::size_t j = 0; j < cases.size(); ++j) {
      ASSERT_EQ(operations[operation_of_case[j]]->launch(*cases[j], options_of(cases[j]->data())), "");
    }
  }
  ASSERT_EQ(ranks.synchronise(), "");
}

TEST_F(AllReduceOnGpu, ARankThatNeverCallsMakesTheOthersTimeOutAndSayWhom) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 3, 1024);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(3, bytes_for(kernels_of({spec}), 8), std::chrono::milliseconds(300));
  GroupOperation operation(set, ranks, kind_of(spec));
  struct Call {
    Algorithm algorithm;
    std::int64_t tokens;
  };
  // One token in two-shot: rank 1 owns nothing and hears from rank 0 only, which waits for the missing one.
  for (const auto& [algorithm, tokens] : {Call{Algorithm::kOneShot, 8}, Call{Algorithm::kTwoShot, 8},
                                          Call{Algorithm::kOneShot, 1}, Call{Algorithm::kTwoShot, 1}}) {
    PlacedCase placed(reference::make_case(spec, tokens, Values::kNormal, 3));
    LaunchOptions options = options_of(placed.data());
    options.algorithm = algorithm;
    const auto before = std::chrono::steady_clock::now();
    for (const int rank : {0, 1}) {
      ASSERT_TRUE(operation.rank(rank).launch(placed.tensors(rank), tokens, options, ranks.stream(rank)).ok());
    }
    EXPECT_NE(ranks.synchronise(), "");
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(3));
    for (const int rank : {0, 1}) {
      const Failure failure = ranks.workspace(rank).failure();
      EXPECT_EQ(failure.code, Code::kTimeout);
      EXPECT_EQ(failure.operation, "residual_rms_norm");
      // In two-shot a rank may instead wait for a rank that itself waits for the missing one.
      if (algorithm == Algorithm::kOneShot) {
        EXPECT_EQ(failure.awaited_rank, 2) << failure.text();
      }
      // Later calls are refused, not queued.
      EXPECT_EQ(operation.rank(rank).launch(placed.tensors(rank), tokens, options, ranks.stream(rank)).code,
                Code::kTimeout);
    }
    ranks.group().reset();
    ASSERT_EQ(operation.launch(placed, options), "");
    EXPECT_EQ(ranks.synchronise(), "");
    EXPECT_EQ(placed.check(), "");
  }
}

TEST_F(AllReduceOnGpu, AbortEndsWaitingKernels) {
  const KernelSpec spec = shape(Pattern::kAllReduce, 2, 1024);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(2, bytes_for(kernels_of({spec}), 4), std::chrono::seconds(60));
  GroupOperation operation(set, ranks, kind_of(spec));
  PlacedCase placed(reference::make_case(spec, 4, Values::kNormal, 3));
  ASSERT_TRUE(operation.rank(0).launch(placed.tensors(0), 4, options_of(placed.data()), ranks.stream(0)).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto before = std::chrono::steady_clock::now();
  ranks.workspace(0).abort();
  EXPECT_NE(ranks.synchronise(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
  EXPECT_EQ(ranks.workspace(0).failure().code, Code::kAborted);
}

TEST_F(AllReduceOnGpu, BlockCapIsKeptAndChangesNoBit) {
  KernelSpec spec = shape(Pattern::kResidualRmsNorm, 2, 2880);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(2, bytes_for(kernels_of({spec}), 100));
  GroupOperation operation(set, ranks, kind_of(spec));
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    spec.algorithm = algorithm;
    PlacedCase placed(reference::make_case(spec, 100, Values::kNormal, 9));
    for (const int cap : {1, 2, 8}) {
      LaunchOptions options = options_of(placed.data());
      options.max_blocks = cap;
      EXPECT_LE(operation.rank(0).plan(100, options).blocks, static_cast<unsigned>(cap));
      ASSERT_EQ(operation.launch(placed, options), "");
      ASSERT_EQ(ranks.synchronise(), "");
      ASSERT_EQ(placed.check(), "");
      placed.restore();
    }
  }
}

TEST_F(AllReduceOnGpu, WrongArgumentsAreNamedAndNothingIsLaunched) {
  const KernelSpec spec = shape(Pattern::kResidualRmsNorm, 2, 1024);
  const KernelSet set = KernelSet::warm_up(kernels_of({spec}));
  Ranks ranks(2, bytes_for(kernels_of({spec}), 4));
  GroupOperation operation(set, ranks, kind_of(spec));
  PlacedCase placed(reference::make_case(spec, 4, Values::kNormal, 3));
  const AllReduceTensors good = placed.tensors(0);
  const auto refusal = [&](const AllReduceTensors& tensors, std::int64_t tokens = 4) {
    return operation.rank(0).launch(tensors, tokens, {}, ranks.stream(0));
  };
  AllReduceTensors bad = good;
  bad.gamma = nullptr;
  EXPECT_EQ(refusal(bad).subject, "gamma");
  bad = good;
  bad.in = static_cast<const char*>(good.in) + 2;
  EXPECT_EQ(refusal(bad).subject, "in");
  bad = good;
  bad.norm_out = good.residual_out;
  EXPECT_EQ(refusal(bad).code, Code::kInvalidArgument);
  bad = good;
  bad.norm_out = static_cast<char*>(good.residual_out) + 1024;
  EXPECT_EQ(refusal(bad).code, Code::kInvalidArgument);
  EXPECT_EQ(refusal(good, -1).subject, "tokens");
  bad = good;
  bad.scale_stride = 0;
  EXPECT_EQ(refusal(bad, 1 << 20).code, Code::kCapacity);
  EXPECT_TRUE(refusal(good, 0).ok());
  EXPECT_EQ(ranks.synchronise(), "");
}

}  // namespace
}  // namespace commfuse::gpu
