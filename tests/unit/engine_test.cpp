#include "commfuse/engine.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <thread>

#include "device/params.cuh"
#include "jit_support.hpp"
#include "runtime/build.hpp"
#include "runtime/loader.hpp"

namespace commfuse {
namespace {

namespace fs = std::filesystem;

class Engine : public testing::Test {
 protected:
  Engine() : shim_(test::reset_cuda_shim()) {
    shim_.param_bytes = sizeof(device::AllReduceParams);
    options_.cache_dir = folder_.path() / "cache";
  }

  [[nodiscard]] BuildReport build(const std::vector<KernelSpec>& specs, const Env& environment = env()) const {
    return runtime::build_kernels(specs, options_, false, environment).report;
  }
  /// The files of entries in the cache.
  [[nodiscard]] std::set<fs::path> entry_files() const {
    std::set<fs::path> files;
    if (!fs::exists(options_.cache_dir)) return files;
    for (const auto& entry : fs::recursive_directory_iterator(options_.cache_dir)) {
      const bool of_entry = entry.path().extension() == ".cubin" || entry.path().extension() == ".json";
      if (of_entry && entry.path().parent_path().filename() != "toolchains") files.insert(entry.path());
    }
    return files;
  }

  test::TemporaryFolder folder_;
  test::CudaShim& shim_;
  BuildOptions options_;
  const std::vector<KernelSpec> specs_ = {test::small_spec(1024), test::small_spec(2048), test::small_spec(4096)};
};

TEST_F(Engine, CompilesOnceAndFindsEverythingTheSecondTimeWithoutNvrtc) {
  const BuildReport cold = build(specs_);
  EXPECT_EQ(cold.compiled, 3);
  EXPECT_EQ(cold.hits, 0);
  EXPECT_GE(cold.nvrtc_calls, 3);
  EXPECT_EQ(entry_files().size(), 6u);

  // The same NVRTC under a path that this process has never opened.
  const std::string nvrtc = test::copy_nvrtc_shim(folder_.path() / "nvrtc");
  const BuildReport warm = build(specs_, test::only(nvrtc));
  EXPECT_EQ(warm.hits, 3);
  EXPECT_EQ(warm.compiled, 0);
  EXPECT_EQ(warm.nvrtc_calls, 0);
  EXPECT_FALSE(test::is_open(nvrtc));
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    EXPECT_EQ(warm.kernels[i].spec, specs_[i]);
    EXPECT_EQ(warm.kernels[i].key, cold.kernels[i].key);
    EXPECT_EQ(warm.kernels[i].key.size(), 64u);
    EXPECT_EQ(warm.kernels[i].origin, KernelOrigin::kCache);
    EXPECT_GT(warm.kernels[i].cubin_bytes, 0u);
  }
}

TEST_F(Engine, ACompleteCacheNeedsNoNvrtcAtAll) {
  (void)build(specs_);
  const BuildReport report = build(specs_, test::only("/nonexistent"));
  EXPECT_EQ(report.hits, 3);
  EXPECT_EQ(report.nvrtc_calls, 0);
}

TEST_F(Engine, WithoutNvrtcWhatTheCacheLacksFailsAloneAndNothingAtAllThrows) {
  (void)build({specs_[1]});
  const BuildReport report = build(specs_, test::only("/nonexistent"));
  EXPECT_EQ(report.hits, 1);
  EXPECT_EQ(report.failed, 2);
  EXPECT_EQ(report.kernels[0].origin, KernelOrigin::kFailed);
  EXPECT_EQ(report.kernels[0].error_code, Code::kNotFound);
  EXPECT_NE(report.kernels[0].error.find("/nonexistent"), std::string::npos);
  EXPECT_EQ(report.kernels[1].origin, KernelOrigin::kCache);

  const Error error = test::error_of([&] { (void)build({test::small_spec(512)}, test::only("/nonexistent")); });
  EXPECT_EQ(error.code(), Code::kNotFound);
}

TEST_F(Engine, OneKernelsFailureDoesNotStopTheOthers) {
  std::vector<KernelSpec> specs = specs_;
  specs[1].threads = 33;  // no multiple of a warp
  specs.push_back(specs_[0]);
  specs.back().arch = "sm_120a";  // unknown to this NVRTC
  const BuildReport report = build(specs);
  EXPECT_EQ(report.compiled, 2);
  EXPECT_EQ(report.failed, 2);
  EXPECT_EQ(report.kernels[1].error_code, Code::kInvalidArgument);
  EXPECT_EQ(report.kernels[3].error_code, Code::kUnsupported);
}

TEST_F(Engine, AFailedCompilationLeavesNothingBehindAndIsTriedAgain) {
  for (const char* mode : {"refuse", "empty", "stale", "memory"}) {
    {
      const test::ScopedVariable variable("COMMFUSE_SHIM_NVRTC", mode);
      const BuildReport report = build({specs_[0]});
      EXPECT_EQ(report.failed, 1) << mode;
      EXPECT_FALSE(report.kernels[0].error.empty());
    }
    EXPECT_TRUE(entry_files().empty()) << mode;
  }
  EXPECT_EQ(build({specs_[0]}).compiled, 1);
}

TEST_F(Engine, ADamagedEntryIsCompiledAgainAndReplaced) {
  (void)build({specs_[0]});
  for (const fs::path& file : entry_files()) {
    const auto size = fs::file_size(file);
    fs::resize_file(file, size / 2);
    EXPECT_EQ(build({specs_[0]}).compiled, 1) << file;
    // The other file holds times, whose digits differ from one compilation to the next.
    if (file.extension() == ".cubin") {
      EXPECT_EQ(fs::file_size(file), size) << file;
    } else {
      EXPECT_GT(fs::file_size(file), size / 2) << file;
    }
    EXPECT_EQ(build({specs_[0]}).hits, 1) << file;
  }
}

TEST_F(Engine, ACacheThatCannotBeWrittenCostsOneWarningAndNoKernel) {
  std::ofstream(folder_ / "file") << "in the way";
  options_.cache_dir = folder_.path() / "file" / "cache";
  const test::LogCapture capture;
  const BuildReport report = build(specs_);
  EXPECT_EQ(report.compiled, 3);
  EXPECT_EQ(report.failed, 0);
  EXPECT_EQ(capture.count(LogLevel::kWarning), 1);
}

TEST_F(Engine, TellsThatItCompilesBeforeItDoes) {
  const test::LogCapture capture;
  (void)build(specs_);
  ASSERT_FALSE(capture.messages().empty());
  EXPECT_NE(capture.messages()[0].second.find("compiling what the cache lacks of 3 kernels"), std::string::npos);
}

TEST_F(Engine, TellsWhyAKernelIsCompiledAgain) {
  (void)build({specs_[0]}, test::only(test::copy_nvrtc_shim(folder_.path() / "before")));
  const test::ScopedVariable variable("COMMFUSE_SHIM_BUILD", "77");
  const test::LogCapture capture;
  EXPECT_EQ(build({specs_[0], specs_[1]}, test::only(test::copy_nvrtc_shim(folder_.path() / "after", 12))).compiled, 2);
  std::string all;
  for (const auto& [level, message] : capture.messages()) all += message + "\n";
  EXPECT_NE(all.find(specs_[0].name() + " was not in the cache; nearest entry"), std::string::npos) << all;
  EXPECT_NE(all.find("nvrtc 99.1.42 CL-12345678 -> 99.1.77 CL-12345678"), std::string::npos) << all;
  EXPECT_EQ(all.find(specs_[1].name() + " was not in the cache"), std::string::npos) << all;
}

TEST_F(Engine, ReportsProgressOnceAKernelFromOneThreadAtATime) {
  std::vector<int> finished;  // unguarded on purpose
  std::set<std::string> names;
  options_.jobs = 8;
  options_.progress = [&](const KernelReport& kernel, int done, int total) {
    finished.push_back(done);
    names.insert(kernel.spec.name());
    EXPECT_EQ(total, 20);
  };
  std::vector<KernelSpec> specs;
  for (int i = 1; i <= 20; ++i) specs.push_back(test::small_spec(i * 256));
  (void)build(specs);
  ASSERT_EQ(finished.size(), 20u);
  EXPECT_TRUE(std::is_sorted(finished.begin(), finished.end()));
  EXPECT_EQ(finished.back(), 20);
  EXPECT_EQ(names.size(), 20u);
}

TEST_F(Engine, TellsOfEveryCompilationBeforeAndAfterAndOfNoHit) {
  std::vector<std::pair<KernelSpec, CompileStep>> steps;
  options_.jobs = 1;
  options_.on_compile = [&](const KernelSpec& spec, CompileStep step) { steps.emplace_back(spec, step); };
  (void)build({specs_[0]});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0], std::pair(specs_[0], CompileStep::kBegin));
  EXPECT_EQ(steps[1], std::pair(specs_[0], CompileStep::kEnd));
  (void)build({specs_[0]});
  EXPECT_EQ(steps.size(), 2u);
  {
    const test::ScopedVariable variable("COMMFUSE_SHIM_NVRTC", "refuse");
    EXPECT_EQ(build({specs_[1]}).failed, 1);
  }
  EXPECT_EQ(steps.size(), 4u);

  options_.on_compile = [](const KernelSpec&, CompileStep) { throw std::runtime_error("not this one"); };
  const BuildReport report = build({specs_[1]});
  EXPECT_EQ(report.failed, 1);
  EXPECT_NE(report.kernels[0].error.find("not this one"), std::string::npos);
}

TEST_F(Engine, BeginsAtTheShareOfItsRank) {
  options_.jobs = 1;
  options_.rank = 2;
  options_.ranks = 3;
  std::vector<KernelSpec> order;
  options_.on_compile = [&](const KernelSpec& spec, CompileStep step) {
    if (step == CompileStep::kBegin) order.push_back(spec);
  };
  EXPECT_EQ(build(specs_).compiled, 3);
  EXPECT_EQ(order, (std::vector<KernelSpec>{specs_[2], specs_[0], specs_[1]}));
}

TEST_F(Engine, ThreadsThatWantTheSameKernelsCompileEachOnceBetweenThem) {
  std::vector<std::jthread> threads;
  std::vector<BuildReport> reports(32);
  for (std::size_t t = 0; t < reports.size(); ++t) {
    threads.emplace_back([&, t] {
      reports[t] = build({specs_[0], test::small_spec(static_cast<int>(t % 4 + 1) * 512)});
    });
  }
  threads.clear();
  int compiled = 0;
  for (const BuildReport& report : reports) {
    EXPECT_EQ(report.failed, 0);
    EXPECT_EQ(report.kernels[0].key, reports[0].kernels[0].key);
    compiled += report.compiled;
  }
  EXPECT_EQ(compiled, 4);
  EXPECT_EQ(build(specs_).failed, 0);
}

TEST_F(Engine, NamesTheArchitectureOfTheDevice) {
  const auto arch = [&](int major, int minor) {
    shim_.compute_major = major;
    shim_.compute_minor = minor;
    return current_arch();
  };
  EXPECT_EQ(arch(8, 0), "sm_80");
  EXPECT_EQ(arch(8, 9), "sm_89");
  EXPECT_EQ(arch(9, 0), "sm_90a");
  EXPECT_EQ(arch(10, 0), "sm_100a");
  EXPECT_EQ(arch(10, 3), "sm_103a");
  EXPECT_EQ(arch(12, 0), "sm_120a");
  shim_.context_current = false;
  EXPECT_EQ(current_arch(), "sm_120a");
  shim_.device_count = 0;
  EXPECT_EQ(test::error_of([] { (void)current_arch(); }).code(), Code::kNotFound);
}

constexpr char kDeployment[] = R"({"name": "test", "world_size": 4, "hidden_size": 2048, "dtype": "bf16",
  "max_tokens": 64, "operations": [{"op": "all_reduce", "patterns": ["all_reduce", "residual_rms_norm"]}]})";

TEST_F(Engine, PrecompilesForTheDeviceAtHandUnlessToldOtherwise) {
  const Deployment deployment = Deployment::parse(kDeployment);
  const BuildReport here = precompile(deployment, options_);
  EXPECT_EQ(here.failed, 0);
  EXPECT_GT(here.compiled, 0);
  for (const KernelReport& kernel : here.kernels) EXPECT_EQ(kernel.spec.arch, "sm_90a");

  options_.archs = {"sm_80", "sm_90a"};
  const BuildReport both = precompile(deployment, options_);
  EXPECT_EQ(both.failed, 0);
  EXPECT_EQ(both.hits, here.compiled);
  EXPECT_GT(both.compiled, 0);
}

TEST_F(Engine, SaysWhatToDoWhereThereIsNeitherDeviceNorArchitecture) {
  shim_.device_count = 0;
  shim_.context_current = false;
  const Error error = test::error_of([&] { (void)precompile(Deployment::parse(kDeployment), options_); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(std::string(error.what()).find("--arch"), std::string::npos);
}

TEST_F(Engine, WarmsUpOnceAndFromTheCacheAfterwards) {
  const Deployment deployment = Deployment::parse(kDeployment);
  {
    const KernelSet cold = KernelSet::warm_up(deployment, options_);
    EXPECT_GT(cold.report().compiled, 0);
    EXPECT_EQ(shim_.libraries, static_cast<int>(cold.report().kernels.size()));
    EXPECT_EQ(cold.arch(), "sm_90a");
    for (const KernelSpec& spec : deployment.kernels({"sm_90a"})) {
      ASSERT_NE(cold.find(spec), nullptr);
      EXPECT_EQ(cold.find(spec)->spec, spec);
    }
    EXPECT_EQ(cold.find(test::small_spec(64)), nullptr);
  }
  EXPECT_EQ(shim_.libraries, 0);
  const KernelSet warm = KernelSet::warm_up(deployment, options_);
  EXPECT_EQ(warm.report().nvrtc_calls, 0);
  EXPECT_EQ(warm.report().hits, static_cast<int>(warm.report().kernels.size()));
}

TEST_F(Engine, WarmsUpARepeatedSpecOnce) {
  const KernelSet set = KernelSet::warm_up({specs_[0], specs_[0], specs_[1]}, options_);
  EXPECT_EQ(set.report().kernels.size(), 2u);
  EXPECT_EQ(shim_.libraries, 2);
}

TEST_F(Engine, RefusesToWarmUpWithoutAContextOrForAnotherDevice) {
  KernelSpec other = specs_[0];
  other.arch = "sm_80";
  EXPECT_EQ(test::error_of([&] { (void)KernelSet::warm_up({other}, options_); }).code(), Code::kInvalidArgument);
  options_.archs = {"sm_80"};
  EXPECT_EQ(test::error_of([&] { (void)KernelSet::warm_up(specs_, options_); }).code(), Code::kInvalidArgument);
  options_.archs.clear();
  shim_.context_current = false;
  EXPECT_EQ(test::error_of([&] { (void)KernelSet::warm_up(specs_, options_); }).code(), Code::kInvalidArgument);
}

TEST_F(Engine, AWarmUpThatFailsUnloadsWhatItLoadedAndTellsWhy) {
  {
    const test::ScopedVariable variable("COMMFUSE_SHIM_NVRTC", "refuse");
    const Error error = test::error_of([&] { (void)KernelSet::warm_up(specs_, options_); });
    EXPECT_EQ(error.code(), Code::kCompiler);
    EXPECT_NE(error.cause().find("nonsense"), std::string::npos);
  }
  shim_.blocks_per_sm = 0;
  EXPECT_EQ(test::error_of([&] { (void)KernelSet::warm_up(specs_, options_); }).code(), Code::kMismatch);
  EXPECT_EQ(shim_.libraries, 0);
}

}  // namespace
}  // namespace commfuse
