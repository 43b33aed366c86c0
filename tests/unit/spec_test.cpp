#include "commfuse/spec.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "commfuse/error.hpp"
#include "runtime/spec_json.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse {
namespace {

KernelSpec example() {
  KernelSpec spec;
  spec.pattern = Pattern::kResidualRmsNorm;
  spec.world_size = 8;
  spec.hidden_size = 8192;
  spec.threads = 512;
  spec.arch = "sm_90a";
  return spec;
}

std::string refusal(const KernelSpec& spec) {
  try {
    spec.validate();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(KernelSpecName, ReadsLikeTheKernel) {
  KernelSpec spec = example();
  EXPECT_EQ(spec.name(), "all_reduce_residual_rms_norm_one_shot_bf16_n8_h8192_fp32acc_t512_c1");
  spec.pattern = Pattern::kAllReduce;
  spec.fp32_accumulate = false;
  EXPECT_EQ(spec.name(), "all_reduce_one_shot_bf16_n8_h8192_bf16acc_t512_c1");
}

TEST(KernelSpecJson, IsCanonical) {
  EXPECT_EQ(
      example().to_json(),
      R"({"algorithm":"one_shot","arch":"sm_90a","cluster":1,"dtype":"bf16","fp32_accumulate":true,)"
      R"("gamma_dtype":"bf16","group_size":0,"hidden_size":8192,"kv_lora_rank":0,"latent_width":0,)"
      R"("op":"all_reduce","pattern":"residual_rms_norm","q_lora_rank":0,"quant_layout":"swizzled_128x4","residual_scattered":false,)"
      R"("threads":512,"weight_bias":false,"world_size":8})");
}

/// One change per field: every one must show in the JSON, and all but the architecture in the name.
const std::vector<std::function<void(KernelSpec&)>> kChanges = {
    [](KernelSpec& spec) { spec.pattern = Pattern::kAllReduce; },
    [](KernelSpec& spec) { spec.op = Op::kReduceScatter; },
    [](KernelSpec& spec) {
      spec.op = Op::kReduceScatter;
      spec.pattern = Pattern::kAddResidualRmsNorm;
    },
    [](KernelSpec& spec) { spec.op = Op::kAllGather, spec.pattern = Pattern::kAllGather; },
    [](KernelSpec& spec) {
      spec.op = Op::kAllGather, spec.pattern = Pattern::kDualRmsNorm;
      spec.q_lora_rank = 1536, spec.kv_lora_rank = 512;
    },
    [](KernelSpec& spec) { spec.world_size = 4; },
    [](KernelSpec& spec) { spec.hidden_size = 4096; },
    [](KernelSpec& spec) { spec.algorithm = Algorithm::kTwoShot; },
    [](KernelSpec& spec) { spec.dtype = spec.gamma_dtype = DataType::kFp16; },
    [](KernelSpec& spec) { spec.gamma_dtype = DataType::kFp32; },
    [](KernelSpec& spec) { spec.weight_bias = true; },
    [](KernelSpec& spec) { spec.residual_scattered = true; },
    [](KernelSpec& spec) {
      spec.pattern = Pattern::kResidualRmsNormFp4;
      spec.quant_layout = QuantLayout::kLinear;
    },
    [](KernelSpec& spec) {
      spec.pattern = Pattern::kResidualRmsNormFp8Group;
      spec.group_size = 64;
    },
    [](KernelSpec& spec) {
      spec.pattern = Pattern::kLatentNorm;
      spec.latent_width = 512;
    },
    [](KernelSpec& spec) { spec.fp32_accumulate = false; },
    [](KernelSpec& spec) { spec.threads = 256; },
    [](KernelSpec& spec) { spec.cluster = 2; },
};

TEST(KernelSpecName, TellsEveryFieldApart) {
  for (std::size_t i = 0; i < kChanges.size(); ++i) {
    KernelSpec changed = example();
    kChanges[i](changed);
    EXPECT_NE(changed.name(), example().name()) << "change " << i;
    EXPECT_NE(changed.to_json(), example().to_json()) << "change " << i;
  }
  KernelSpec other_arch = example();
  other_arch.arch = "sm_100a";
  EXPECT_EQ(other_arch.name(), example().name());
  EXPECT_NE(other_arch.to_json(), example().to_json());
}

TEST(KernelSpecJson, ComesBackAsTheSameSpec) {
  for (const auto& change : kChanges) {
    KernelSpec spec = example();
    change(spec);
    EXPECT_EQ(runtime::spec_from_json(spec.to_json()), spec);
  }
}

TEST(KernelSpecJson, RefusesWhatItDidNotWrite) {
  const std::string good = example().to_json();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("null"), good + " ", with("one_shot", "no_shot"),
        with("\"op\":\"all_reduce\",", ""), with("8192", "8192.0"), with("8192", "18446744073709551615"),
        with("8192", "8193"), with("true", "1"), with("sm_90a", "sm_20"), with("{", "{\"extra\":1,"),
        with("\"bf16\"", "{}")}) {
    try {
      (void)runtime::spec_from_json(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidInput) << text;
    }
  }
}

TEST(KernelSpecValidate, AcceptsTheWholeRange) {
  for (const DataType dtype : {DataType::kFp16, DataType::kBf16, DataType::kFp32}) {
    for (int world_size = 1; world_size <= kMaxWorldSize; ++world_size) {
      for (const int hidden_size : {16 / size_of(dtype), 2880, 5120, 7168, 18432, kMaxHiddenSize}) {
        KernelSpec spec = example();
        spec.dtype = spec.gamma_dtype = dtype;
        spec.world_size = world_size;
        spec.hidden_size = hidden_size;
        EXPECT_EQ(refusal(spec), "");
      }
    }
  }
  for (const char* arch : {"sm_80", "sm_86", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120a"}) {
    KernelSpec spec = example();
    spec.arch = arch;
    EXPECT_EQ(refusal(spec), "") << arch;
  }
}

TEST(KernelSpecValidate, NamesTheFieldTheValueAndWhatIsAllowed) {
  struct Case {
    std::function<void(KernelSpec&)> change;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {[](KernelSpec& spec) { spec.world_size = 0; }, {"world_size 0", "1 to 16"}},
      {[](KernelSpec& spec) { spec.world_size = 17; }, {"world_size 17", "1 to 16"}},
      {[](KernelSpec& spec) { spec.hidden_size = 0; }, {"hidden_size 0", "65536"}},
      {[](KernelSpec& spec) { spec.hidden_size = -8; }, {"hidden_size -8"}},
      {[](KernelSpec& spec) { spec.hidden_size = 65544; }, {"hidden_size 65544", "65536"}},
      {[](KernelSpec& spec) { spec.hidden_size = 8196; }, {"hidden_size 8196", "multiples of 8 for bf16"}},
      {[](KernelSpec& spec) { spec.threads = 0; }, {"threads 0", "multiples of 32"}},
      {[](KernelSpec& spec) { spec.threads = 100; }, {"threads 100"}},
      {[](KernelSpec& spec) { spec.threads = 1056; }, {"threads 1056", "1024"}},
      {[](KernelSpec& spec) { spec.cluster = 3; }, {"cluster 3", "1, 2, 4 or 8"}},
      {[](KernelSpec& spec) { spec.cluster = 16; }, {"cluster 16"}},
      {[](KernelSpec& spec) { spec.cluster = 2, spec.arch = "sm_80"; }, {"cluster 2", "sm_90"}},
      {[](KernelSpec& spec) { spec.dtype = spec.gamma_dtype = DataType::kFp32, spec.fp32_accumulate = false; },
       {"fp32_accumulate"}},
      {[](KernelSpec& spec) { spec.gamma_dtype = DataType::kFp16; }, {"gamma_dtype fp16", "bf16 or fp32"}},
      {[](KernelSpec& spec) { spec.group_size = 128; }, {"residual_rms_norm", "group_size"}},
      {[](KernelSpec& spec) { spec.pattern = Pattern::kResidualRmsNormFp8Group, spec.group_size = 24; },
       {"group_size 24", "8, 16, 32"}},
      {[](KernelSpec& spec) { spec.pattern = Pattern::kResidualRmsNormFp8Block, spec.hidden_size = 2880; },
       {"hidden_size 2880", "multiples of 128"}},
      {[](KernelSpec& spec) { spec.pattern = Pattern::kLatentNorm, spec.latent_width = 8200; }, {"latent_width 8200"}},
      {[](KernelSpec& spec) { spec.dtype = static_cast<DataType>(99); }, {"dtype 99", "fp16, bf16, fp32"}},
      {[](KernelSpec& spec) { spec.pattern = static_cast<Pattern>(-1); }, {"pattern -1", "residual_rms_norm"}},
      {[](KernelSpec& spec) { spec.op = Op::kReduceScatter, spec.pattern = Pattern::kLatentNorm; },
       {"pattern latent_norm", "the patterns of reduce_scatter: reduce_scatter, residual_rms_norm"}},
      {[](KernelSpec& spec) { spec.pattern = Pattern::kAddResidualRmsNorm; },
       {"pattern add_residual_rms_norm", "the patterns of all_reduce"}},
      {[](KernelSpec& spec) { spec.op = Op::kReduceScatter, spec.algorithm = Algorithm::kTwoShot; },
       {"an option that pattern residual_rms_norm does not have"}},
      {[](KernelSpec& spec) {
         spec.op = Op::kAllGather, spec.pattern = Pattern::kDualRmsNorm;
         spec.q_lora_rank = 1540, spec.kv_lora_rank = 512;
       },
       {"q_lora_rank 1540", "multiples of 8"}},
      {[](KernelSpec& spec) {
         spec.op = Op::kAllGather, spec.pattern = Pattern::kDualRmsNorm;
         spec.q_lora_rank = 8000, spec.kv_lora_rank = 512;
       },
       {"kv_lora_rank 512", "hidden_size - q_lora_rank"}},
      {[](KernelSpec& spec) {
         spec.op = Op::kAllGather, spec.pattern = Pattern::kDualRmsNormFp8Block;
         spec.q_lora_rank = 1544, spec.kv_lora_rank = 512;
       },
       {"q_lora_rank 1544", "multiples of 128"}},
      {[](KernelSpec& spec) { spec.op = static_cast<Op>(7); }, {"op 7", "all_reduce"}},
      {[](KernelSpec& spec) { spec.algorithm = static_cast<Algorithm>(7); }, {"algorithm 7", "one_shot"}},
  };
  for (const Case& each : cases) {
    KernelSpec spec = example();
    each.change(spec);
    const std::string text = refusal(spec);
    for (const std::string& part : each.parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(KernelSpecValidate, RefusesWhatIsNoTarget) {
  for (const char* arch : {"", "sm_", "sm_75", "sm_79a", "sm_080", "sm_9x", "sm_90aa", "sm_90b", "compute_90", "SM_90",
                           "sm_90 ", "sm_9000", "sm_99999999999999999999", "sm_a", "native"}) {
    KernelSpec spec = example();
    spec.arch = arch;
    EXPECT_NE(refusal(spec).find("arch"), std::string::npos) << arch;
  }
}

TEST(KernelSpecCallCheck, IsOneKernelForEachWorldSizeWithoutOptions) {
  for (int world_size = 1; world_size <= kMaxWorldSize; ++world_size) {
    const KernelSpec spec = KernelSpec::call_check(world_size, "sm_90a");
    EXPECT_EQ(refusal(spec), "");
    EXPECT_EQ(spec.name(), "call_check_n" + std::to_string(world_size));
    EXPECT_EQ(runtime::spec_from_json(spec.to_json()), spec);
  }
  for (const auto& change : kChanges) {
    KernelSpec spec = KernelSpec::call_check(4, "sm_90a");
    change(spec);
    if (spec.op != Op::kCallCheck || spec == KernelSpec::call_check(spec.world_size, "sm_90a")) continue;
    EXPECT_NE(refusal(spec).find("call_check does not have"), std::string::npos) << spec.to_json();
  }
  EXPECT_NE(refusal(KernelSpec::call_check(17, "sm_90a")).find("world_size 17"), std::string::npos);
  EXPECT_NE(refusal(KernelSpec::call_check(4, "sm_70")).find("arch"), std::string::npos);
}

TEST(SpecPatterns, HaveTheCodesOfPublicInterfaces) {
  EXPECT_EQ(pattern_code(Op::kAllReduce, Pattern::kAllReduce), 0);
  EXPECT_EQ(pattern_code(Op::kAllReduce, Pattern::kResidualRmsNormPartialOutFp8Block), 7);
  EXPECT_EQ(pattern_code(Op::kAllReduce, Pattern::kResidualRmsNormPartialOut), 8);
  EXPECT_EQ(pattern_code(Op::kReduceScatter, Pattern::kReduceScatter), 0);
  EXPECT_EQ(pattern_code(Op::kReduceScatter, Pattern::kAddResidualRmsNormFp8Block), 7);
  EXPECT_EQ(pattern_code(Op::kReduceScatter, Pattern::kAddResidualRmsNorm), 8);
  EXPECT_EQ(pattern_code(Op::kReduceScatter, Pattern::kResidualRmsNormPartialOut), -1);
  EXPECT_EQ(pattern_of_code(Op::kReduceScatter, 9), std::nullopt);
  EXPECT_EQ(pattern_code(Op::kAllGather, Pattern::kAllGather), 0);
  EXPECT_EQ(pattern_code(Op::kAllGather, Pattern::kDualRmsNorm), 1);
  EXPECT_EQ(pattern_code(Op::kAllGather, Pattern::kDualRmsNormFp8Block), 2);
  for (const auto& op : runtime::kNames<Op>) {
    // What deployments ask for by name.
    if (op.value != Op::kCallCheck) {
      EXPECT_FALSE(patterns(op.value).empty()) << op.name;
    }
    for (const Pattern pattern : patterns(op.value)) {
      EXPECT_EQ(pattern_of_code(op.value, pattern_code(op.value, pattern)), pattern) << op.name;
    }
  }
  // An all-reduce's enumerators are their codes.
  for (const Pattern pattern : patterns(Op::kAllReduce)) {
    EXPECT_EQ(pattern_code(Op::kAllReduce, pattern), static_cast<int>(pattern));
  }
}

TEST(KernelSpecName, SaysOpAndPatternOnce) {
  KernelSpec spec = example();
  spec.op = Op::kReduceScatter;
  EXPECT_EQ(spec.name(), "reduce_scatter_residual_rms_norm_one_shot_bf16_n8_h8192_fp32acc_t512_c1");
  spec.pattern = Pattern::kReduceScatter;
  EXPECT_EQ(spec.name(), "reduce_scatter_one_shot_bf16_n8_h8192_fp32acc_t512_c1");
}

TEST(SpecNames, EveryNumberHasOneName) {
  EXPECT_EQ(to_string(static_cast<Pattern>(1000)), "unknown");
  EXPECT_EQ(runtime::value_of<Pattern>("unknown"), std::nullopt);
  for (const auto& entry : runtime::kNames<Pattern>) {
    EXPECT_EQ(runtime::value_of<Pattern>(to_string(entry.value)), entry.value);
  }
}

}  // namespace
}  // namespace commfuse
