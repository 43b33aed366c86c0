#include "runtime/compiler.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "jit_support.hpp"

namespace commfuse::runtime {
namespace {

class Compiler : public testing::Test {
 protected:
  Compiler() : nvrtc_(Nvrtc::open(test::copy_nvrtc_shim(folder_.path()))) { nvrtc_.load_builtins(); }

  [[nodiscard]] Error error_in_mode(const std::string& mode) const {
    const test::ScopedVariable variable("COMMFUSE_SHIM_NVRTC", mode);
    return test::error_of([&] { (void)compile(nvrtc_, program_of(test::small_spec())); });
  }

  test::TemporaryFolder folder_;
  Nvrtc nvrtc_;
};

TEST_F(Compiler, ReturnsMachineCodeFactsAndTimes) {
  const std::uint64_t before = nvrtc_calls();
  const CompiledKernel kernel = compile(nvrtc_, program_of(test::small_spec()));
  EXPECT_EQ(nvrtc_calls(), before + 1);
  EXPECT_EQ(kernel.facts.arch, 90);
  EXPECT_EQ(kernel.facts.registers, 40);
  EXPECT_EQ(kernel.times.front_end, 11);
  EXPECT_EQ(kernel.times.optimizer, 22);
  EXPECT_EQ(kernel.times.assembler, 33);
  EXPECT_GT(kernel.times.total, 0);
  EXPECT_EQ(kernel.log, "");  // the table of times is no message
}

TEST_F(Compiler, SuccessWithoutMachineCodeIsAnError) {
  const Error error = error_in_mode("empty");
  EXPECT_EQ(error.code(), Code::kCompiler);
  EXPECT_NE(error.cause().find("reports success, but the compiler's output is empty"), std::string::npos);
}

TEST_F(Compiler, SuccessWithAnotherKernelsMachineCodeIsAnError) {
  const Error error = error_in_mode("stale");
  EXPECT_EQ(error.code(), Code::kCompiler);
  EXPECT_NE(error.cause().find("it holds no kernel '" + test::small_spec().name()), std::string::npos);
}

TEST_F(Compiler, SuccessWithMachineCodeForAnotherArchitectureIsAnError) {
  const Error error = error_in_mode("arch");
  EXPECT_EQ(error.code(), Code::kCompiler);
  EXPECT_NE(error.cause().find("it is for sm_80, not sm_90a"), std::string::npos);
}

TEST_F(Compiler, AnErrorCarriesLogOptionsAndSpec) {
  const Error error = error_in_mode("refuse");
  EXPECT_EQ(error.code(), Code::kCompiler);
  EXPECT_NE(error.message().find(test::small_spec().name()), std::string::npos);
  for (const std::string& part :
       {std::string("identifier \"nonsense\" is undefined"), std::string("NVRTC_ERROR_COMPILATION"),
        std::string("99.1"), std::string("--gpu-architecture=sm_90a"), test::small_spec().to_json(), nvrtc_.path()}) {
    EXPECT_NE(error.cause().find(part), std::string::npos) << part;
  }
}

TEST_F(Compiler, MissingBuiltinsAreNamed) {
  const Error error = error_in_mode("builtins");
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(error.cause().find("libnvrtc-builtins.so.99.1"), std::string::npos);
  EXPECT_NE(error.cause().find(folder_.path().string()), std::string::npos);
}

TEST_F(Compiler, ShortageOfMemoryHasACodeOfItsOwn) { EXPECT_EQ(error_in_mode("memory").code(), Code::kOutOfMemory); }

TEST_F(Compiler, AnArchitectureThatItDoesNotKnowIsRefusedBeforeNvrtcIsAsked) {
  KernelSpec spec = test::small_spec();
  spec.arch = "sm_100a";
  const std::uint64_t before = nvrtc_calls();
  const Error error = test::error_of([&] { (void)compile(nvrtc_, program_of(spec)); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_NE(error.cause().find("sm_70, sm_80, sm_90"), std::string::npos);
  EXPECT_EQ(nvrtc_calls(), before);
}

TEST_F(Compiler, TellsWhichBuildItIs) { EXPECT_EQ(probe_build(nvrtc_), "99.1.42 CL-12345678"); }

TEST(CompileOptions, DependOnVersionAndArchitectureOnly) {
  EXPECT_EQ(compile_options({13, 0}, "sm_90a"), compile_options({13, 0}, "sm_90a"));
  EXPECT_NE(compile_options({13, 0}, "sm_90a"), compile_options({13, 0}, "sm_80"));
  EXPECT_EQ(compile_options({13, 0}, "sm_90a"), compile_options({12, 9}, "sm_90a"));
}

TEST(CompileOptions, HoldNothingThatAnOlderNvrtcRefuses) {
  const auto has = [](NvrtcVersion version, const char* option) {
    const auto options = compile_options(version, "sm_90a");
    return std::find(options.begin(), options.end(), option) != options.end();
  };
  EXPECT_FALSE(has({12, 0}, "--minimal"));
  EXPECT_TRUE(has({12, 4}, "--minimal"));
  EXPECT_FALSE(has({12, 8}, "--no-cache"));
  EXPECT_TRUE(has({12, 9}, "--no-cache"));
  for (const NvrtcVersion version : {NvrtcVersion{12, 0}, NvrtcVersion{13, 0}}) {
    EXPECT_TRUE(has(version, "--modify-stack-limit=false"));
    EXPECT_TRUE(has(version, "--no-source-include"));
    EXPECT_TRUE(has(version, "--fmad=false"));
  }
}

}  // namespace
}  // namespace commfuse::runtime
