// What the real NVRTC of this machine makes of the templates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "runtime/compiler.hpp"
#include "runtime/generator.hpp"
#include "runtime/parallel.hpp"
#include "runtime/spec_names.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::runtime {
namespace {

const Nvrtc& nvrtc_for(const std::string& arch) {
  static Toolchains& toolchains = *new Toolchains(
      [] {
        // This program's own COMMFUSE_NVRTC is a stand-in; jit_main.cpp has kept the one it was started with.
        Env environment = env();
        const char* real = std::getenv("COMMFUSE_REAL_NVRTC");
        environment.nvrtc = real == nullptr ? "" : real;
        return environment;
      }(),
      ToolchainMemo({}));
  return toolchains.for_arch(arch).nvrtc();
}

KernelSpec spec_of(Pattern pattern, const std::string& arch = "sm_90a", Op op = Op::kAllReduce) {
  KernelSpec spec;
  spec.op = op;
  spec.pattern = pattern;
  spec.hidden_size = 1024;
  spec.group_size = 128;
  spec.latent_width = 512;
  spec.q_lora_rank = 512;
  spec.kv_lora_rank = 256;
  spec.arch = arch;
  spec = spec.normalised();
  const Geometry geometry = geometries(spec).front();
  spec.threads = geometry.threads;
  spec.cluster = geometry.cluster;
  return spec;
}

void expect_usable(const KernelSpec& spec, const CompiledKernel& kernel) {
  EXPECT_EQ(kernel.facts.arch, arch_number(spec.arch)) << spec.name();
  EXPECT_EQ(kernel.facts.param_bytes, template_of(spec).params_size) << spec.name();
  EXPECT_GT(kernel.facts.code_bytes, 0u) << spec.name();
  // Registers are handed out to a warp in units of 256.
  const int per_warp = (kernel.facts.registers * 32 + 255) / 256 * 256;
  const int warps = resident_blocks_per_sm(spec.threads) * spec.threads / 32;
  EXPECT_LE(per_warp * warps, 65536) << spec.name() << ": the planner counts on more blocks than fit";
}

TEST(EngineCompile, EveryPatternCompiles) {
  std::vector<KernelSpec> specs;
  for (const auto& op : kNames<Op>) {
    for (const Pattern pattern : patterns(op.value)) specs.push_back(spec_of(pattern, "sm_90a", op.value));
  }
  const Nvrtc& nvrtc = nvrtc_for("sm_90a");
  std::vector<std::string> problems(specs.size());
  std::vector<CompiledKernel> kernels(specs.size());
  for_each_parallel(specs.size(), choose_jobs(0, specs.size()), [&](std::size_t i) {
    try {
      kernels[i] = compile(nvrtc, program_of(specs[i]));
    } catch (const Error& error) {
      problems[i] = error.what();
    }
  });
  for (std::size_t i = 0; i < specs.size(); ++i) {
    ASSERT_EQ(problems[i], "");
    expect_usable(specs[i], kernels[i]);
  }
}

TEST(EngineCompile, EveryArchitectureCompiles) {
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"}) {
    for (const KernelSpec& spec : {spec_of(Pattern::kResidualRmsNorm, arch), KernelSpec::call_check(8, arch)}) {
      expect_usable(spec, compile(nvrtc_for(arch), program_of(spec)));
    }
  }
}

TEST(EngineCompile, EqualProgramsGiveEqualBytesInEveryThread) {
  const KernelSpec spec = spec_of(Pattern::kAllReduce);
  std::vector<std::string> cubins(3);
  const Nvrtc& nvrtc = nvrtc_for(spec.arch);
  for_each_parallel(cubins.size(), 2, [&](std::size_t i) { cubins[i] = compile(nvrtc, program_of(spec)).cubin; });
  EXPECT_FALSE(cubins[0].empty());
  EXPECT_EQ(cubins[0], cubins[1]);
  EXPECT_EQ(cubins[0], cubins[2]);
}

TEST(EngineCompile, DiagnosticsNameTheTemplateTheLineAndTheSpec) {
  static constexpr EmbeddedTemplate kBroken[] = {{"device/broken.cuh", "int first;\nint second = nonsense;\n"}};
  Program program = program_of(spec_of(Pattern::kAllReduce));
  program.source = "#include \"device/broken.cuh\"\n" + program.source;
  program.headers = kBroken;
  try {
    (void)compile(nvrtc_for(program.arch), program);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCompiler);
    const std::string text = error.what();
    for (const std::string& part : {std::string("device/broken.cuh(2): error"), std::string("\"nonsense\""),
                                    std::string("--gpu-architecture=sm_90a"), program.origin}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
  }
}

TEST(EngineCompile, NothingOnDiskIsRead) {
  Program program = program_of(spec_of(Pattern::kAllReduce));
  for (const char* header : {"<cuda_fp16.h>", "<stdio.h>", "\"CMakeCache.txt\"", "\"Makefile\""}) {
    program.source = std::string("#include ") + header + "\nextern \"C\" __global__ void " + program.name + "() {}\n";
    EXPECT_THROW((void)compile(nvrtc_for(program.arch), program), Error) << header;
  }
}

TEST(EngineCompile, TheProbeTellsTheBuild) {
  const Nvrtc& nvrtc = nvrtc_for("sm_90a");
  const std::string build = probe_build(nvrtc);
  EXPECT_EQ(version_of(build), nvrtc.version()) << build;
  EXPECT_NE(build.find(" CL-"), std::string::npos) << build;
}

}  // namespace
}  // namespace commfuse::runtime
