// Workspaces whose ranks are processes of their own, on as many real GPUs as there are (all on one if there is one).
// This program starts itself once for each rank.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "commfuse/engine.hpp"
#include "commfuse/exchange.hpp"
#include "gpu/loopback.hpp"
#include "runtime/driver.hpp"

extern char** environ;

namespace commfuse::gpu {
namespace {

using namespace std::chrono_literals;
using reference::Values;

constexpr int kHiddenSize = 2048;
constexpr std::int64_t kMostTokens = 160;
constexpr auto kPeerTimeout = 2s;

KernelSpec shape(Pattern pattern, int world_size) {
  KernelSpec spec;
  spec.pattern = pattern;
  spec.world_size = world_size;
  spec.hidden_size = kHiddenSize;
  spec.dtype = spec.gamma_dtype = DataType::kBf16;
  spec.arch = current_arch();
  return spec.normalised();
}

/// All that the ranks launch: both patterns, both algorithms, all geometries.
std::vector<KernelSpec> kernels_of(int world_size) {
  std::vector<KernelSpec> kernels;
  for (const Pattern pattern : {Pattern::kAllReduce, Pattern::kResidualRmsNorm}) {
    KernelSpec spec = shape(pattern, world_size);
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

BuildOptions cached_in(const std::filesystem::path& directory) {
  BuildOptions options;
  options.cache_dir = directory / "cache";
  return options;
}

// ---- one rank -------------------------------------------------------------------------------------------------------

struct RankArguments {
  std::string task;
  int rank = 0;
  int size = 1;
  std::string group;
  std::filesystem::path directory;  ///< for the exchange and the kernels' cache
  MemoryKind kind = MemoryKind::kAuto;
};

class Rank {
 public:
  explicit Rank(const RankArguments& arguments)
      : arguments_(arguments),
        exchange_(make_unix_exchange({.group = arguments.group,
                                      .rank = arguments.rank,
                                      .size = arguments.size,
                                      .directory = arguments.directory / "exchange",
                                      .host = std::nullopt},
                                     30s)) {}

  int run() {
    int count = 0;
    COMMFUSE_DRIVER(cuDeviceGetCount(&count));
    const DeviceContext context(arguments_.rank % count);
    if (arguments_.task == "cycles") return cycles();
    const KernelSet kernels = KernelSet::warm_up(kernels_of(arguments_.size), cached_in(arguments_.directory));
    if (kernels.report().compiled != 0) return fail("the kernels were not in the cache");
    return arguments_.task == "calls" ? calls(kernels) : lose_one(kernels);
  }

 private:
  int fail(const std::string& text) const {
    std::fprintf(stdout, "rank %d: %s\n", arguments_.rank, text.c_str());
    return 1;
  }

  [[nodiscard]] ProcessGroup make_group(std::chrono::nanoseconds timeout) {
    std::uint64_t bytes = 0;
    for (const KernelSpec& spec : kernels_of(arguments_.size)) {
      bytes = std::max(bytes, required_rotation_bytes(spec, kMostTokens));
    }
    return ProcessGroup::create(
        *exchange_, {.rotation_bytes = bytes, .timeout = timeout, .set_up_timeout = std::chrono::seconds(30)},
        arguments_.kind);
  }

  int calls(const KernelSet& kernels) {
    ProcessGroup group = make_group(20s);
    std::fprintf(stdout, "rank %d: %s\n", arguments_.rank, group.kind_reason().c_str());
    if (arguments_.kind != MemoryKind::kAuto && group.kind() != arguments_.kind) return fail("another kind was chosen");
    const StreamHandle stream;
    struct Call {
      AllReduce* operation;
      std::unique_ptr<PlacedCase> placed;
    };
    std::vector<std::unique_ptr<AllReduce>> operations;
    std::vector<Call> calls;
    std::uint64_t seed = 1;
    for (const Pattern pattern : {Pattern::kAllReduce, Pattern::kResidualRmsNorm}) {
      KernelSpec spec = shape(pattern, arguments_.size);
      operations.push_back(std::make_unique<AllReduce>(kernels, group.workspace(), kind_of(spec)));
      for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{3}, std::int64_t{32}, kMostTokens}) {
        for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
          spec.algorithm = algorithm;
          calls.push_back({operations.back().get(),
                           std::make_unique<PlacedCase>(reference::make_case(spec, tokens, Values::kAnyBits, ++seed),
                                                        arguments_.rank)});
        }
      }
    }
    for (int round = 0; round < 5; ++round) {
      for (const Call& call : calls) {
        const reference::Case& data = call.placed->data();
        const Status status =
            call.operation->launch(call.placed->tensors(arguments_.rank), data.tokens, options_of(data), stream.get());
        if (!status.ok()) return fail(status.text());
      }
      COMMFUSE_DRIVER(cuStreamSynchronize(stream.get()));
      if (const Failure failure = group.workspace().failure(); failure.code != Code::kOk) return fail(failure.text());
      for (const Call& call : calls) {
        if (const std::string report = call.placed->check(); !report.empty()) return fail(report);
        call.placed->restore();
      }
    }
    return 0;
  }

  /// The last rank kills itself between two calls; the others must notice in time and still be able to leave.
  int lose_one(const KernelSet& kernels) {
    ProcessGroup group = make_group(kPeerTimeout);
    const StreamHandle stream;
    const KernelSpec spec = shape(Pattern::kResidualRmsNorm, arguments_.size);
    AllReduce operation(kernels, group.workspace(), kind_of(spec));
    const PlacedCase placed(reference::make_case(spec, 8, Values::kNormal, 1), arguments_.rank);
    auto last_success = std::chrono::steady_clock::now();
    for (int call = 0; call < 200; ++call) {
      if (call == 100 && arguments_.rank == arguments_.size - 1) ::raise(SIGKILL);
      const Status status =
          operation.launch(placed.tensors(arguments_.rank), 8, options_of(placed.data()), stream.get());
      if (!status.ok()) return fail("launch refused: " + status.text());
      COMMFUSE_DRIVER(cuStreamSynchronize(stream.get()));
      const Failure failure = group.workspace().failure();
      if (failure.code == Code::kOk) {
        last_success = std::chrono::steady_clock::now();
        continue;
      }
      const auto waited = std::chrono::steady_clock::now() - last_success;
      if (failure.code != Code::kTimeout) return fail(failure.text());
      if (waited > kPeerTimeout + 3s) return fail("noticed only after several seconds: " + failure.text());
      if (call < 100) return fail("failed before the rank was lost: " + failure.text());
      if (operation.launch(placed.tensors(arguments_.rank), 8, {}, stream.get()).code != Code::kTimeout) {
        return fail("a later call was not refused");
      }
      return 0;
    }
    return fail("nobody missed the lost rank");
  }

  int cycles() {
    const auto open_descriptors = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
    };
    std::ptrdiff_t before = 0;
    for (int cycle = 0; cycle < 20; ++cycle) {
      const ProcessGroup group = make_group(5s);
      // What the driver opens once and keeps is open by then.
      if (cycle == 1) before = open_descriptors();
      if (cycle == 19 && open_descriptors() != before) {
        return fail(std::to_string(before) + " descriptors became " + std::to_string(open_descriptors()));
      }
    }
    return 0;
  }

  RankArguments arguments_;
  std::unique_ptr<Exchange> exchange_;
};

// ---- all of them ----------------------------------------------------------------------------------------------------

struct Ended {
  int status = 0;  ///< as waitpid has it
  std::string output;
};

class Processes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!why_no_gpu().empty()) return;
    char pattern[] = "/tmp/commfuse-groups-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    directory_ = pattern;
    // Compiled once, here; the ranks take them from the cache.
    const DeviceContext context;
    std::vector<KernelSpec> kernels;
    for (const int size : {2, 4, 8}) {
      for (const KernelSpec& spec : kernels_of(size)) kernels.push_back(spec);
    }
    (void)KernelSet::warm_up(kernels, cached_in(directory_));
  }
  static void TearDownTestSuite() {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << "needs a GPU: " << reason;
  }

  /// Runs `task` on `size` processes and waits for all, two minutes at most.
  static std::vector<Ended> run(const std::string& task, int size, MemoryKind kind) {
    static int number = 0;
    const std::string group = "process group test " + std::to_string(::getpid()) + " " + std::to_string(++number);
    std::vector<pid_t> pids;
    std::vector<std::filesystem::path> outputs;
    for (int rank = 0; rank < size; ++rank) {
      outputs.push_back(directory_ / ("output-" + std::to_string(rank)));
      std::vector<std::string> words = {"/proc/self/exe",
                                        "--rank-process",
                                        task,
                                        std::to_string(rank),
                                        std::to_string(size),
                                        group,
                                        directory_.string(),
                                        std::to_string(static_cast<int>(kind))};
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      posix_spawn_file_actions_t actions;
      ::posix_spawn_file_actions_init(&actions);
      ::posix_spawn_file_actions_addopen(&actions, 1, outputs.back().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
      pid_t pid = -1;
      EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
      ::posix_spawn_file_actions_destroy(&actions);
      pids.push_back(pid);
    }
    std::vector<Ended> ended(pids.size());
    const auto deadline = std::chrono::steady_clock::now() + 120s;
    for (std::size_t i = 0; i < pids.size(); ++i) {
      if (pids[i] < 0) continue;
      while (::waitpid(pids[i], &ended[i].status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) ::kill(pids[i], SIGKILL);
        std::this_thread::sleep_for(5ms);
      }
      std::ifstream file(outputs[i]);
      ended[i].output.assign(std::istreambuf_iterator<char>(file), {});
    }
    return ended;
  }
  static void expect_success(const std::vector<Ended>& ended) {
    for (const Ended& rank : ended) {
      EXPECT_TRUE(WIFEXITED(rank.status) && WEXITSTATUS(rank.status) == 0) << rank.status << "\n" << rank.output;
    }
  }

  static inline std::filesystem::path directory_;
};

class SizesAndKinds : public Processes, public ::testing::WithParamInterface<std::tuple<int, MemoryKind>> {};

TEST_P(SizesAndKinds, AgreeWithTheReferenceBitForBit) {
  expect_success(run("calls", std::get<0>(GetParam()), std::get<1>(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Gpu, SizesAndKinds,
                         ::testing::Combine(::testing::Values(2, 4, 8),
                                            ::testing::Values(MemoryKind::kAuto, MemoryKind::kVmmDescriptor,
                                                              MemoryKind::kLegacyIpc)),
                         [](const auto& chosen) {
                           return std::to_string(std::get<0>(chosen.param)) + "_" +
                                  std::string(to_string(std::get<1>(chosen.param)));
                         });

class Kinds : public Processes, public ::testing::WithParamInterface<MemoryKind> {};

TEST_P(Kinds, ARankThatIsKilledMakesTheOthersTimeOutAndLeaveCleanly) {
  std::vector<Ended> ended = run("lose", 3 + 1, GetParam());
  EXPECT_TRUE(WIFSIGNALED(ended.back().status) && WTERMSIG(ended.back().status) == SIGKILL) << ended.back().output;
  ended.pop_back();
  expect_success(ended);
}

TEST_P(Kinds, MakingAndDestroyingManyTimesLeavesNoDescriptorBehind) { expect_success(run("cycles", 2, GetParam())); }

INSTANTIATE_TEST_SUITE_P(Gpu, Kinds, ::testing::Values(MemoryKind::kVmmDescriptor, MemoryKind::kLegacyIpc),
                         [](const auto& chosen) { return std::string(to_string(chosen.param)); });

int run_rank(char** words) try {
  RankArguments arguments;
  arguments.task = words[0];
  arguments.rank = std::atoi(words[1]);
  arguments.size = std::atoi(words[2]);
  arguments.group = words[3];
  arguments.directory = words[4];
  arguments.kind = static_cast<MemoryKind>(std::atoi(words[5]));
  return Rank(arguments).run();
} catch (const std::exception& error) {
  std::fprintf(stdout, "%s\n", error.what());
  return 1;
}

}  // namespace
}  // namespace commfuse::gpu

int main(int argc, char** argv) {
  if (argc == 8 && std::string_view(argv[1]) == "--rank-process") return commfuse::gpu::run_rank(argv + 2);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
