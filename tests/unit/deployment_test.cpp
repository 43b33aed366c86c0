#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"
#include "runtime/deployment_schema.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse {
namespace {

using nlohmann::json;

const std::filesystem::path kSource = COMMFUSE_SOURCE_DIR;

std::vector<std::filesystem::path> shipped_deployments() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "examples/deployments")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

json small() {
  return json::parse(R"({"name": "small", "world_size": 4, "hidden_size": 2880, "dtype": "bf16", "max_tokens": 128,
                         "arch": ["sm_90a"], "operations": [{"op": "all_reduce", "patterns": ["all_reduce"]}]})");
}

TEST(Deployment, ReadsEveryKey) {
  const Deployment deployment = Deployment::parse(R"({
    "$schema": "x", "description": "y", "name": "all-keys.v1", "world_size": 3, "hidden_size": 64, "dtype": "fp16",
    "max_tokens": 2147483647, "arch": ["sm_80", "sm_90a"], "checking": true,
    "operations": [{"op": "all_reduce", "description": "z", "patterns": ["residual_rms_norm", "all_reduce"],
                    "algorithms": ["one_shot"], "dtypes": ["fp32", "bf16"], "hidden_sizes": [128, 8],
                    "fp32_accumulate": [false, true]}]})");
  EXPECT_EQ(deployment.name, "all-keys.v1");
  EXPECT_EQ(deployment.world_size, 3);
  EXPECT_EQ(deployment.hidden_size, 64);
  EXPECT_EQ(deployment.dtype, DataType::kFp16);
  EXPECT_EQ(deployment.max_tokens, 2147483647);
  EXPECT_EQ(deployment.arch, (std::vector<std::string>{"sm_80", "sm_90a"}));
  EXPECT_TRUE(deployment.checking);
  ASSERT_EQ(deployment.operations.size(), 1U);
  const Deployment::Operation& operation = deployment.operations[0];
  EXPECT_EQ(operation.op, Op::kAllReduce);
  EXPECT_EQ(operation.patterns, (std::vector<Pattern>{Pattern::kResidualRmsNorm, Pattern::kAllReduce}));
  EXPECT_EQ(operation.algorithms, (std::vector<Algorithm>{Algorithm::kOneShot}));
  EXPECT_EQ(operation.dtypes, (std::vector<DataType>{DataType::kFp32, DataType::kBf16}));
  EXPECT_EQ(operation.hidden_sizes, (std::vector<int>{128, 8}));
  EXPECT_EQ(operation.fp32_accumulate, (std::vector<bool>{false, true}));
}

TEST(Deployment, CheckingAddsOneKernelForEachArchitecture) {
  json document = small();
  document["arch"] = {"sm_80", "sm_90a"};
  const auto without = Deployment::parse(document.dump()).kernels();
  document["checking"] = false;
  EXPECT_EQ(Deployment::parse(document.dump()).kernels(), without);
  document["checking"] = true;
  std::vector<KernelSpec> added;
  for (const KernelSpec& spec : Deployment::parse(document.dump()).kernels()) {
    if (std::find(without.begin(), without.end(), spec) == without.end()) added.push_back(spec);
  }
  EXPECT_EQ(added, (std::vector<KernelSpec>{KernelSpec::call_check(4, "sm_80"), KernelSpec::call_check(4, "sm_90a")}));
  document["operations"][0]["op"] = "call_check";
  EXPECT_THROW((void)Deployment::parse(document.dump()), Error);
}

TEST(Deployment, LeftOutListsTakeTheDeploymentsValues) {
  const Deployment deployment = Deployment::parse(small().dump());
  ASSERT_EQ(deployment.operations.size(), 1U);
  EXPECT_EQ(deployment.operations[0].algorithms, (std::vector<Algorithm>{Algorithm::kOneShot, Algorithm::kTwoShot}));
  const std::vector<KernelSpec> specs = deployment.kernels();
  ASSERT_FALSE(specs.empty());
  EXPECT_EQ(specs[0].hidden_size, 2880);
  EXPECT_EQ(specs[0].dtype, DataType::kBf16);
  EXPECT_TRUE(specs[0].fp32_accumulate);
  EXPECT_EQ(specs[0].arch, "sm_90a");
}

TEST(DeploymentKernels, HaveEveryGeometryOfTheirShape) {
  json document = small();
  document["operations"][0]["patterns"] = {"residual_rms_norm"};
  document["operations"][0]["algorithms"] = {"one_shot"};
  const std::vector<KernelSpec> specs = Deployment::parse(document.dump()).kernels();
  std::vector<Geometry> found;
  for (const KernelSpec& spec : specs) found.push_back({spec.threads, spec.cluster});
  EXPECT_EQ(found, geometries(specs.at(0)));
}

TEST(DeploymentKernels, AreTheProductWithoutRepetition) {
  json document = small();
  document["operations"][0]["algorithms"] = {"one_shot"};
  document["operations"][0]["patterns"] = {"all_reduce", "residual_rms_norm"};
  document["operations"][0]["dtypes"] = {"bf16", "fp16"};
  document["operations"][0]["hidden_sizes"] = {2880, 4096, 8192};
  document["operations"][0]["fp32_accumulate"] = {true, false};
  document["operations"].push_back(document["operations"][0]);  // says the same once more
  const Deployment deployment = Deployment::parse(document.dump());
  const std::vector<KernelSpec> specs = deployment.kernels({"sm_90a", "sm_100a"});
  std::set<std::string> texts;
  std::set<std::string> shapes;
  for (KernelSpec spec : specs) {
    texts.insert(spec.to_json());
    spec.threads = spec.cluster = 0;
    shapes.insert(spec.to_json());
  }
  EXPECT_EQ(texts.size(), specs.size());
  EXPECT_EQ(shapes.size(), 2U * 2 * 2 * 3 * 2);
  EXPECT_EQ(deployment.kernels({"sm_90a", "sm_100a"}), specs) << "the order is not fixed";
}

TEST(DeploymentKernels, Fp32HasOneFormOfItsSum) {
  json document = small();
  document["dtype"] = "fp32";
  document["operations"][0]["algorithms"] = {"one_shot"};
  document["operations"][0]["fp32_accumulate"] = {false, true};
  const std::vector<KernelSpec> specs = Deployment::parse(document.dump()).kernels();
  ASSERT_EQ(specs.size(), geometries(specs.at(0)).size());
  EXPECT_TRUE(specs[0].fp32_accumulate);
}

TEST(DeploymentKernels, OfAReduceScatterHaveOneAlgorithm) {
  json document = small();
  document["operations"][0] = {{"op", "reduce_scatter"}, {"patterns", {"reduce_scatter", "add_residual_rms_norm"}}};
  const std::vector<KernelSpec> specs = Deployment::parse(document.dump()).kernels();
  document["operations"][0]["algorithms"] = {"two_shot"};
  EXPECT_EQ(Deployment::parse(document.dump()).kernels(), specs);
  for (const KernelSpec& spec : specs) {
    EXPECT_EQ(spec.op, Op::kReduceScatter);
    EXPECT_EQ(spec.algorithm, Algorithm::kOneShot);
  }
}

TEST(Deployment, PatternsOfAnotherOperationAreRefusedWithThoseThatThereAre) {
  json document = small();
  document["operations"][0] = {{"op", "reduce_scatter"}, {"patterns", {"reduce_scatter", "latent_norm"}}};
  try {
    (void)Deployment::parse(document.dump());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidInput);
    for (const char* part : {"/operations/0/patterns/1", "latent_norm", "the patterns of reduce_scatter",
                             "add_residual_rms_norm_fp8_block"}) {
      EXPECT_NE(error.cause().find(part), std::string::npos) << part << " in " << error.cause();
    }
  }
}

TEST(DeploymentKernels, NeedAnArchitecture) {
  json document = small();
  document.erase("arch");
  const Deployment deployment = Deployment::parse(document.dump());
  EXPECT_THROW((void)deployment.kernels(), Error);
  EXPECT_THROW((void)deployment.kernels({"sm_20"}), Error);
  EXPECT_EQ(deployment.kernels({"sm_80"}).at(0).arch, "sm_80");
}

TEST(ShippedDeployments, LoadAndNameTheirFile) {
  const auto files = shipped_deployments();
  ASSERT_GE(files.size(), 4U);
  for (const auto& file : files) {
    const Deployment deployment = Deployment::load(file);
    EXPECT_EQ(deployment.name, file.stem().string());
    EXPECT_FALSE(deployment.kernels({"sm_90a"}).empty());
  }
}

TEST(DeploymentSchema, IsTheFileThatIsPublished) {
  std::ifstream stream(kSource / "schemas/deployment.schema.json");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_EQ(runtime::deployment_schema_text(), text);
}

template <typename Enum>
void expect_names(const json& rule) {
  json names = json::array();
  for (const auto& entry : runtime::kNames<Enum>) names.push_back(entry.name);
  EXPECT_EQ(rule.at("enum"), names);
}

TEST(DeploymentSchema, ListsTheNamesOfTheLibrary) {
  const json definitions = json::parse(runtime::deployment_schema_text()).at("definitions");
  const json& operation = definitions.at("operation").at("properties");
  expect_names<DataType>(definitions.at("dtype"));
  // Announcements are asked for with "checking".
  json ops = json::array();
  for (const auto& entry : runtime::kNames<Op>) {
    if (entry.value != Op::kCallCheck) ops.push_back(entry.name);
  }
  EXPECT_EQ(operation.at("op").at("enum"), ops);
  expect_names<Pattern>(operation.at("patterns").at("items"));
  expect_names<Algorithm>(operation.at("algorithms").at("items"));
}

TEST(DeploymentSchema, AllowsTheArchitecturesThatSpecsAllow) {
  for (const char* arch :
       {"sm_80", "sm_90a", "sm_100f", "sm_999", "sm_75", "sm_080", "sm_90b", "sm_1000", "sm_", "x"}) {
    json document = small();
    document["arch"] = {arch};
    KernelSpec spec = Deployment::parse(small().dump()).kernels().at(0);
    spec.arch = arch;
    bool spec_allows = true;
    try {
      spec.validate();
    } catch (const Error&) {
      spec_allows = false;
    }
    bool schema_allows = true;
    try {
      (void)Deployment::parse(document.dump());
    } catch (const Error&) {
      schema_allows = false;
    }
    EXPECT_EQ(schema_allows, spec_allows) << arch;
  }
}

}  // namespace
}  // namespace commfuse
