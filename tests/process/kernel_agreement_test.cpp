// Ranks that compare their kernels before they use them: real processes, each with a cache of its own, no GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "commfuse/engine.hpp"
#include "commfuse/exchange.hpp"
#include "process/cache_process.hpp"
#include "runtime/build.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse {
namespace {

using cache::testing::Child;
using cache::testing::TemporaryDirectory;
using namespace std::chrono_literals;

constexpr char kDeployment[] = R"({"name": "test", "world_size": 4, "hidden_size": 2048, "dtype": "bf16",
  "max_tokens": 64, "arch": ["sm_90a"],
  "operations": [{"op": "all_reduce", "patterns": ["all_reduce", "residual_rms_norm"]}]})";

class KernelAgreement : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ::unsetenv("COMMFUSE_CACHE_READONLY");
    ::setenv("COMMFUSE_NVRTC", COMMFUSE_NVRTC_SHIM, 1);
  }

  [[nodiscard]] std::filesystem::path cache_of(int rank) const {
    return dir_ / ("cache" + std::to_string(rank)).c_str();
  }

  [[nodiscard]] BuildReport build(int rank) const {
    BuildOptions options;
    options.cache_dir = cache_of(rank);
    return precompile(Deployment::parse(kDeployment), options);
  }

  /// Every rank in a process of its own: what `report` gives it, compared with the others'. By rank, the ranks that the
  /// error names and its text; empty where all was well.
  [[nodiscard]] std::vector<std::string> compare(int ranks, const std::function<BuildReport(int rank)>& report) const {
    std::vector<Child> children;
    for (int rank = 0; rank < ranks; ++rank) {
      children.emplace_back([&, rank]() -> std::string {
        const BuildReport mine = report(rank);
        if (mine.failed != 0) return "not built: " + mine.kernels.front().error;
        UnixExchangeOptions options;
        options.group = "kernels";
        options.rank = rank;
        options.size = ranks;
        options.directory = dir_ / "meet";
        const auto exchange = make_unix_exchange(options, 60s);
        std::string text;
        try {
          agree_on_kernels(*exchange, mine, 60s);
        } catch (const ExchangeError& error) {
          for (const int each : error.ranks()) text += std::to_string(each) + " ";
          text += error.what();
          if (error.code() != Code::kMismatch) text += " [not a mismatch]";
        }
        exchange->barrier(60s);  // a mismatch leaves the exchange in step
        return text;
      });
    }
    std::vector<std::string> texts;
    for (Child& child : children) texts.push_back(child.result());
    return texts;
  }

  static void expect_everywhere(const std::vector<std::string>& texts, const std::vector<std::string>& parts) {
    for (const std::string& text : texts) {
      EXPECT_EQ(text, texts.front());
      for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
    }
  }

  TemporaryDirectory dir_;
};

TEST_P(KernelAgreement, RanksThatCompiledAndRanksThatFoundTheSameKernelsAgree) {
  const int ranks = GetParam();
  ASSERT_EQ(cache::testing::run_in_child([&] { return std::to_string(build(0).failed); }), "0");
  const auto texts = compare(ranks, [&](int rank) {
    BuildReport report = build(rank);
    const bool as_meant = rank == 0 ? report.compiled == 0 : report.hits == 0;
    return as_meant ? report : throw std::runtime_error("rank 0 should have found, the others compiled");
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "");
}

TEST_P(KernelAgreement, ARankWithAnotherCompilerIsNamedWithTheKernelAndTheDifference) {
  const int ranks = GetParam();
  const int odd = ranks - 1;
  const auto texts = compare(ranks, [&](int rank) {
    if (rank == odd) ::setenv("COMMFUSE_SHIM_BUILD", "77", 1);
    return build(rank);
  });
  expect_everywhere(texts, {std::to_string(odd) + " the ranks of exchange 'kernels' do not have the same kernels",
                            "rank " + std::to_string(odd) + ": its kernel all_reduce_", " for sm_90a is another one",
                            "nvrtc 99.1.42 CL-12345678 -> 99.1.77 CL-12345678"});
}

TEST_P(KernelAgreement, ARankWhoseCacheHoldsOtherMachineCodeUnderTheSameKeyIsNamed) {
  const int ranks = GetParam();
  const int odd = ranks / 2;
  const auto texts = compare(ranks, [&](int rank) {
    if (rank == odd) {
      const auto specs = Deployment::parse(kDeployment).kernels();
      const cache::Wanted kernel = runtime::wanted_kernels({specs[1]}, cache_of(rank)).at(0);
      const cache::Store store(cache::testing::options_for(cache_of(rank)));
      if (!store.publish(kernel.key, kernel.signature_json, cache::testing::make_cubin(), "{}").stored()) std::abort();
    }
    return build(rank);
  });
  const std::string kernel = Deployment::parse(kDeployment).kernels().at(1).name();
  // Of two, nobody can tell who is right: rank 0 stands for the others.
  expect_everywhere(texts,
                    {std::to_string(odd) + " the ranks of", "rank " + std::to_string(odd) + ": its kernel " + kernel,
                     "has other machine code under the same key", "SHA-256"});
}

TEST_P(KernelAgreement, ARankWithAKernelLessOrMoreIsNamed) {
  const int ranks = GetParam();
  const auto all = compare(ranks, [&](int rank) {
    BuildReport report = build(rank);
    if (rank == 1) report.kernels.pop_back();
    return report;
  });
  expect_everywhere(
      all, {"1 the ranks of", "rank 1: it lacks kernel " + Deployment::parse(kDeployment).kernels().back().name()});
  const auto more = compare(ranks, [&](int rank) {
    BuildReport report = build(rank);
    if (rank != 1) report.kernels.pop_back();
    return report;
  });
  expect_everywhere(
      more, {"1 the ranks of", "rank 1: it has kernel " + Deployment::parse(kDeployment).kernels().back().name()});
}

INSTANTIATE_TEST_SUITE_P(Processes, KernelAgreement, ::testing::Values(2, 3, 8));

}  // namespace
}  // namespace commfuse
