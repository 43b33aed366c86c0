#include "runtime/generator.hpp"

#include <gtest/gtest.h>

#include <set>

#include "device/params.cuh"
#include "jit_support.hpp"

namespace commfuse::runtime {
namespace {

std::vector<KernelSpec> varied_specs() {
  std::vector<KernelSpec> specs;
  const auto add = [&](auto change) {
    KernelSpec spec = test::small_spec();
    change(spec);
    specs.push_back(spec);
  };
  add([](KernelSpec&) {});
  add([](KernelSpec& s) { s.pattern = Pattern::kResidualRmsNorm; });
  add([](KernelSpec& s) { s.world_size = 3; });
  add([](KernelSpec& s) { s.hidden_size = 2880; });
  add([](KernelSpec& s) { s.dtype = DataType::kFp16; });
  add([](KernelSpec& s) { s.dtype = DataType::kFp32; });
  add([](KernelSpec& s) { s.fp32_accumulate = false; });
  add([](KernelSpec& s) { s.threads = 256; });
  add([](KernelSpec& s) { s.cluster = 4; });
  return specs;
}

TEST(Generator, WritesTheKernelUnderTheSpecsName) {
  const KernelSpec spec = test::small_spec();
  const std::string source = render_source(spec);
  EXPECT_NE(source.find("extern \"C\" __global__ void __launch_bounds__(128, "), std::string::npos) << source;
  EXPECT_NE(source.find("\n" + spec.name() + "("), std::string::npos);
  EXPECT_NE(source.find(render_config(spec, "Config")), std::string::npos);
}

TEST(Generator, WritesEveryConstantOfTheSpec) {
  KernelSpec spec = test::small_spec(2880);
  spec.world_size = 6;
  spec.threads = 192;
  spec.cluster = 2;
  const std::string config = render_config(spec, "Example");
  for (const char* part : {"struct Example {", "kWorldSize = 6;", "kHiddenSize = 2880;", "Type::kBf16;",
                           "kFp32Accumulate = true;", "kThreads = 192;", "kCluster = 2;"}) {
    EXPECT_NE(config.find(part), std::string::npos) << part << "\n" << config;
  }
}

TEST(Generator, AssertsTheHostsParameterBlock) {
  const std::string assertion = "== " + std::to_string(sizeof(device::AllReduceParams)) + ",";
  EXPECT_NE(render_source(test::small_spec()).find(assertion), std::string::npos);
}

TEST(Generator, WritesTheAnnouncementOfCallsWithItsOwnParameterBlock) {
  const std::string source = render_source(KernelSpec::call_check(4, "sm_90a"));
  EXPECT_NE(source.find("#include \"call_check.cuh\""), std::string::npos) << source;
  EXPECT_NE(source.find("call_check<Config>(params)"), std::string::npos) << source;
  EXPECT_NE(source.find("== " + std::to_string(sizeof(device::CallCheckParams)) + ","), std::string::npos) << source;
}

TEST(Generator, GivesEqualSpecsEqualTextsAndDifferentSpecsDifferentOnes) {
  std::set<std::string> texts;
  for (const KernelSpec& spec : varied_specs()) {
    const std::string source = render_source(spec);
    EXPECT_EQ(source, render_source(spec));
    EXPECT_TRUE(texts.insert(source).second) << source;
  }
}

}  // namespace
}  // namespace commfuse::runtime
