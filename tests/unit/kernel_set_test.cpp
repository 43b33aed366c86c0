// Kernels that nobody warmed up: before and after seal().
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "commfuse/engine.hpp"
#include "device/params.cuh"
#include "jit_support.hpp"

namespace commfuse {
namespace {

using namespace std::chrono_literals;

class KernelSets : public testing::Test {
 protected:
  KernelSets() : shim_(test::reset_cuda_shim()) {
    shim_.param_bytes = sizeof(device::AllReduceParams);
    options_.cache_dir = folder_.path() / "cache";
    options_.jobs = 1;
    options_.on_compile = [this](const KernelSpec&, CompileStep step) {
      ++(step == CompileStep::kBegin ? begun_ : ended_);
      const std::scoped_lock lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    };
  }

  /// With the first of `specs_` in it.
  [[nodiscard]] KernelSet warm() { return KernelSet::warm_up({specs_[0]}, options_); }

  /// Asks until the background build has come.
  [[nodiscard]] std::vector<const KernelImage*> ask_until_there(const KernelSet& set, std::vector<KernelSpec> specs) {
    for (int i = 0; i < 3000; ++i) {
      try {
        return set.find_or_build(specs);
      } catch (const Error& error) {
        if (error.code() != Code::kNotWarmed) throw;
      }
      std::this_thread::sleep_for(10ms);
    }
    ADD_FAILURE() << "the background build does not end";
    return {};
  }

  test::TemporaryFolder folder_;
  test::CudaShim& shim_;
  BuildOptions options_;
  std::atomic<int> begun_{0}, ended_{0};
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
  const std::vector<KernelSpec> specs_ = {test::small_spec(1024), test::small_spec(2048), test::small_spec(4096)};
};

TEST_F(KernelSets, BuildAMissOnTheSpotBeforeTheyAreSealed) {
  const KernelSet set = warm();
  const std::vector<KernelSpec> wanted = {specs_[1], specs_[2]};
  const auto found = set.find_or_build(wanted);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], set.find(specs_[1]));
  EXPECT_EQ(found[1], set.find(specs_[2]));
  ASSERT_NE(found[0], nullptr);
  ASSERT_NE(found[1], nullptr);
  EXPECT_EQ(begun_, 3);
  EXPECT_EQ(ended_, 3);
  EXPECT_EQ(shim_.libraries, 3);
  EXPECT_EQ(set.report().kernels.size(), 1u);

  EXPECT_EQ(set.find_or_build(wanted), found);
  const MissCounters counters = set.miss_counters();
  EXPECT_EQ(counters.misses, 1u);
  EXPECT_EQ(counters.after_seal, 0u);
  EXPECT_EQ(counters.refused, 0u);
  EXPECT_EQ(counters.loaded, 2u);
  EXPECT_EQ(counters.compiled, 2u);
}

TEST_F(KernelSets, TakeAMissFromTheCacheWhereItIs) {
  options_.on_compile = nullptr;
  (void)KernelSet::warm_up(specs_, options_);
  const KernelSet set = warm();
  (void)set.find_or_build(std::vector{specs_[1]});
  EXPECT_EQ(set.miss_counters().loaded, 1u);
  EXPECT_EQ(set.miss_counters().compiled, 0u);
}

TEST_F(KernelSets, GiveWhatTheyHoldAndCountNoMissWhereAPartIsThere) {
  KernelSet set = warm();
  set.seal();
  const auto found = set.find_or_build(std::vector{specs_[1], specs_[0]});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], nullptr);
  EXPECT_EQ(found[1], set.find(specs_[0]));
  EXPECT_TRUE(set.find_or_build({}).empty());
  EXPECT_EQ(set.miss_counters().misses, 0u);
  EXPECT_EQ(begun_, 1);
}

TEST_F(KernelSets, RefuseAMissWithItsSpecificationOnceSealed) {
  KernelSet set = warm();
  set.seal(MissPolicy::kError);
  for (int i = 1; i <= 2; ++i) {
    const Error error = test::error_of([&] { (void)set.find_or_build(std::vector{specs_[1]}); });
    EXPECT_EQ(error.code(), Code::kNotWarmed);
    EXPECT_NE(error.cause().find(specs_[1].to_json()), std::string::npos) << error.cause();
    EXPECT_NE(error.remedy().find("deployment file"), std::string::npos);
    const MissCounters counters = set.miss_counters();
    EXPECT_EQ(counters.misses, static_cast<unsigned>(i));
    EXPECT_EQ(counters.after_seal, static_cast<unsigned>(i));
    EXPECT_EQ(counters.refused, static_cast<unsigned>(i));
    EXPECT_EQ(counters.loaded, 0u);
  }
  EXPECT_EQ(begun_, 1);
  EXPECT_EQ(shim_.libraries, 1);
}

TEST_F(KernelSets, WarnOfAMissAndBuildItOnceSealedSo) {
  KernelSet set = warm();
  set.seal(MissPolicy::kWarn);
  const test::LogCapture capture;
  EXPECT_NE(set.find_or_build(std::vector{specs_[1]}).at(0), nullptr);
  EXPECT_EQ(capture.count(LogLevel::kWarning), 1);
  EXPECT_NE(capture.messages()[0].second.find(specs_[1].to_json()), std::string::npos);
  (void)set.find_or_build(std::vector{specs_[1]});
  EXPECT_EQ(capture.count(LogLevel::kWarning), 1);
  EXPECT_EQ(set.miss_counters().after_seal, 1u);
  EXPECT_EQ(set.miss_counters().compiled, 1u);
  EXPECT_EQ(begun_, 2);
  EXPECT_EQ(ended_, 2);
}

TEST_F(KernelSets, BuildAMissInTheBackgroundOnceSealedSo) {
  KernelSet set = warm();
  threads_.clear();
  set.seal(MissPolicy::kBackground);
  const Error error = test::error_of([&] { (void)set.find_or_build(std::vector{specs_[1]}); });
  EXPECT_EQ(error.code(), Code::kNotWarmed);
  EXPECT_NE(error.cause().find("background"), std::string::npos);
  EXPECT_EQ(set.miss_counters().pending, 1u);
  EXPECT_NE(ask_until_there(set, {specs_[1]}).at(0), nullptr);
  EXPECT_EQ(set.miss_counters().pending, 0u);
  EXPECT_EQ(set.miss_counters().loaded, 1u);
  EXPECT_GE(set.miss_counters().refused, 1u);
  EXPECT_EQ(begun_, 2);
  EXPECT_EQ(threads_.size(), 1u);
  EXPECT_FALSE(threads_.contains(std::this_thread::get_id())) << "it was compiled by the thread that asked";
}

TEST_F(KernelSets, TellAFailureInTheBackgroundOnceAndTryAgain) {
  KernelSet set = warm();
  set.seal(MissPolicy::kBackground);
  {
    const test::ScopedVariable variable("COMMFUSE_SHIM_NVRTC", "refuse");
    const Error error = test::error_of([&] { (void)ask_until_there(set, {specs_[1]}); });
    EXPECT_EQ(error.code(), Code::kCompiler);
  }
  EXPECT_EQ(set.miss_counters().pending, 0u);
  EXPECT_NE(ask_until_there(set, {specs_[1]}).at(0), nullptr);
}

TEST_F(KernelSets, WaitForTheBackgroundWhenTheyGo) {
  options_.on_compile = [this](const KernelSpec&, CompileStep step) {
    if (step == CompileStep::kEnd) std::this_thread::sleep_for(50ms);
    ++(step == CompileStep::kBegin ? begun_ : ended_);
  };
  {
    KernelSet set = warm();
    set.seal(MissPolicy::kBackground);
    EXPECT_EQ(test::error_of([&] { (void)set.find_or_build(std::vector{specs_[1]}); }).code(), Code::kNotWarmed);
    while (begun_ < 2) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(ended_, 2);
  EXPECT_EQ(shim_.libraries, 0);
}

TEST_F(KernelSets, LoadOnceWhatThirtyTwoThreadsMissAtATime) {
  for (const MissPolicy policy : {MissPolicy::kWarn, MissPolicy::kBackground}) {
    KernelSet set = warm();
    set.seal(policy);
    std::vector<const KernelImage*> images(32);
    {
      std::vector<std::jthread> threads;
      for (std::size_t t = 0; t < images.size(); ++t) {
        threads.emplace_back([&, t] { images[t] = ask_until_there(set, {specs_[1 + t % 2]}).at(0); });
      }
    }
    for (std::size_t t = 0; t < images.size(); ++t) EXPECT_EQ(images[t], set.find(specs_[1 + t % 2]));
    EXPECT_EQ(set.miss_counters().loaded, 2u);
    EXPECT_EQ(shim_.libraries, 3);
  }
  EXPECT_EQ(begun_, 3) << "what the first round compiled was in the cache of the second";
}

TEST_F(KernelSets, AddNothingWithoutTheirContext) {
  const KernelSet set = warm();
  shim_.context_current = false;
  EXPECT_EQ(test::error_of([&] { (void)set.find_or_build(std::vector{specs_[1]}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(begun_, 1);
}

}  // namespace
}  // namespace commfuse
