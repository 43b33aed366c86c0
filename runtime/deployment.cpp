#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"
#include "runtime/deployment_file.hpp"
#include "runtime/deployment_json.hpp"
#include "runtime/deployment_schema.hpp"
#include "runtime/spec_json.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse {
namespace {

using nlohmann::json;

constexpr int kVectorBytes = 16;
/// Of one architecture, each with a few geometries. Far beyond any model, and low enough that a slip cannot keep a
/// machine busy for days.
constexpr std::int64_t kMaxShapes = 4096;

template <typename Enum>
Enum enum_from(const json& name) {
  // The schema has checked the name; the schema's lists equal the tables (a test).
  return runtime::value_of<Enum>(name.get_ref<const std::string&>()).value();
}

template <typename Enum>
std::vector<Enum> enums_at(const json& object, const char* key) {
  std::vector<Enum> values;
  if (!object.contains(key)) return values;
  for (const json& name : object.at(key)) values.push_back(enum_from<Enum>(name));
  return values;
}

template <typename Enum>
std::vector<Enum> every() {
  std::vector<Enum> values;
  for (const auto& entry : runtime::kNames<Enum>) values.push_back(entry.value);
  return values;
}

/// Without mention: those that need nothing of the engine. The direct form needs registered tensors.
std::vector<Algorithm> usual_algorithms() { return {Algorithm::kOneShot, Algorithm::kTwoShot}; }

template <typename T>
std::vector<T> or_else(const std::vector<T>& values, std::vector<T> otherwise) {
  return values.empty() ? std::move(otherwise) : values;
}

Deployment::Operation operation_from(const json& object) {
  Deployment::Operation operation;
  operation.op = enum_from<Op>(object.at("op"));
  operation.patterns = enums_at<Pattern>(object, "patterns");
  operation.algorithms = or_else(enums_at<Algorithm>(object, "algorithms"), usual_algorithms());
  operation.dtypes = enums_at<DataType>(object, "dtypes");
  operation.fp32_accumulate = {true};
  if (object.contains("fp32_accumulate")) {
    operation.fp32_accumulate = object.at("fp32_accumulate").get<std::vector<bool>>();
  }
  if (object.contains("hidden_sizes")) operation.hidden_sizes = object.at("hidden_sizes").get<std::vector<int>>();
  operation.gamma_dtypes = enums_at<DataType>(object, "gamma_dtypes");
  operation.quant_layouts = enums_at<QuantLayout>(object, "quant_layouts");
  if (object.contains("weight_bias")) operation.weight_bias = object.at("weight_bias").get<std::vector<bool>>();
  if (object.contains("residual_scattered")) {
    operation.residual_scattered = object.at("residual_scattered").get<std::vector<bool>>();
  }
  if (object.contains("group_sizes")) operation.group_sizes = object.at("group_sizes").get<std::vector<int>>();
  if (object.contains("q_lora_ranks")) operation.q_lora_ranks = object.at("q_lora_ranks").get<std::vector<int>>();
  if (object.contains("kv_lora_ranks")) operation.kv_lora_ranks = object.at("kv_lora_ranks").get<std::vector<int>>();
  if (object.contains("latent_widths")) operation.latent_widths = object.at("latent_widths").get<std::vector<int>>();
  return operation;
}

[[noreturn]] void refuse(std::string_view origin, std::string_view pointer, std::string_view found,
                         std::string_view allowed) {
  throw Error(Code::kInvalidInput, fmt::format("{} is not valid", origin),
              fmt::format("{}: found {}; allowed: {}", pointer, found, allowed),
              "docs/deployment.md describes every key");
}

/// Each of `specs` with each of `values` in one field. An empty list leaves the field alone.
template <typename T, typename Field>
std::vector<KernelSpec> product(const std::vector<KernelSpec>& specs, const std::vector<T>& values,
                                Field KernelSpec::*field) {
  if (values.empty()) return specs;
  std::vector<KernelSpec> out;
  for (const KernelSpec& spec : specs) {
    for (const T& value : values) {
      out.push_back(spec);
      out.back().*field = value;
    }
  }
  return out;
}

/// The shapes of one operation: kernels without a geometry, normalised, with repetitions.
std::vector<KernelSpec> shapes_of(const Deployment& deployment, const Deployment::Operation& operation,
                                  const std::string& arch) {
  KernelSpec first;
  first.op = operation.op;
  first.world_size = deployment.world_size;
  first.arch = arch;
  first.group_size = 128;
  std::vector<KernelSpec> specs = product({first}, operation.patterns, &KernelSpec::pattern);
  specs = product(specs, or_else(operation.algorithms, usual_algorithms()), &KernelSpec::algorithm);
  specs = product(specs, or_else(operation.dtypes, {deployment.dtype}), &KernelSpec::dtype);
  specs = product(specs, or_else(operation.hidden_sizes, {deployment.hidden_size}), &KernelSpec::hidden_size);
  specs = product(specs, or_else(operation.fp32_accumulate, {true}), &KernelSpec::fp32_accumulate);
  for (KernelSpec& spec : specs) spec.gamma_dtype = spec.dtype;
  specs = product(specs, operation.gamma_dtypes, &KernelSpec::gamma_dtype);
  specs = product(specs, operation.weight_bias, &KernelSpec::weight_bias);
  specs = product(specs, operation.residual_scattered, &KernelSpec::residual_scattered);
  specs = product(specs, operation.quant_layouts, &KernelSpec::quant_layout);
  specs = product(specs, operation.group_sizes, &KernelSpec::group_size);
  specs = product(specs, operation.latent_widths, &KernelSpec::latent_width);
  specs = product(specs, operation.q_lora_ranks, &KernelSpec::q_lora_rank);
  specs = product(specs, operation.kv_lora_ranks, &KernelSpec::kv_lora_rank);
  for (KernelSpec& spec : specs) spec = spec.normalised();
  return specs;
}

/// What the schema cannot say: rows are whole vectors of every type they are used with, patterns fit the sizes, and the
/// product is bounded.
void check_meaning(const Deployment& deployment, std::string_view origin) {
  std::int64_t shapes = 0;
  for (std::size_t i = 0; i < deployment.operations.size(); ++i) {
    const Deployment::Operation& operation = deployment.operations[i];
    const std::vector<DataType> dtypes = or_else(operation.dtypes, {deployment.dtype});
    const std::vector<int> hidden_sizes = or_else(operation.hidden_sizes, {deployment.hidden_size});
    for (const DataType dtype : dtypes) {
      const int multiple = kVectorBytes / size_of(dtype);
      for (std::size_t j = 0; j < hidden_sizes.size(); ++j) {
        if (hidden_sizes[j] % multiple == 0) continue;
        const std::string pointer = operation.hidden_sizes.empty()
                                        ? std::string("/hidden_size")
                                        : fmt::format("/operations/{}/hidden_sizes/{}", i, j);
        refuse(origin, pointer, std::to_string(hidden_sizes[j]),
               fmt::format("multiples of {} for {} (rows of whole 16-byte vectors)", multiple, to_string(dtype)));
      }
    }
    for (std::size_t j = 0; j < operation.patterns.size(); ++j) {
      if (pattern_code(operation.op, operation.patterns[j]) >= 0) continue;
      refuse(origin, fmt::format("/operations/{}/patterns/{}", i, j), to_string(operation.patterns[j]),
             runtime::patterns_text(operation.op));
    }
    const auto at_least_one = [](std::size_t count) { return std::max<std::size_t>(count, 1); };
    shapes += static_cast<std::int64_t>(
        operation.patterns.size() * operation.algorithms.size() * dtypes.size() * hidden_sizes.size() *
        operation.fp32_accumulate.size() * at_least_one(operation.gamma_dtypes.size()) *
        at_least_one(operation.weight_bias.size()) * at_least_one(operation.residual_scattered.size()) *
        at_least_one(operation.quant_layouts.size()) * at_least_one(operation.group_sizes.size()) *
        at_least_one(operation.latent_widths.size()) * at_least_one(operation.q_lora_ranks.size()) *
        at_least_one(operation.kv_lora_ranks.size()));
  }
  if (shapes > kMaxShapes) {
    refuse(origin, "/operations", fmt::format("lists whose product is {} shapes of kernels", shapes),
           fmt::format("at most {} for one architecture", kMaxShapes));
  }
  for (std::size_t i = 0; i < deployment.operations.size(); ++i) {
    const Deployment::Operation& operation = deployment.operations[i];
    for (KernelSpec spec : shapes_of(deployment, operation, "sm_90a")) {
      spec.threads = 32;
      try {
        spec.validate();
      } catch (const Error& error) {
        throw Error(Code::kInvalidInput, fmt::format("{} is not valid", origin),
                    fmt::format("/operations/{}: {} ({})", i, error.message(), error.cause()),
                    "docs/deployment.md describes every key");
      }
    }
  }
}

}  // namespace

Deployment Deployment::parse(std::string_view text, std::string_view origin) {
  const json document = runtime::parse_untrusted_json(text, origin);
  runtime::check_deployment_schema(document, origin);
  Deployment deployment;
  deployment.name = document.at("name").get<std::string>();
  deployment.world_size = document.at("world_size").get<int>();
  deployment.hidden_size = document.at("hidden_size").get<int>();
  deployment.dtype = enum_from<DataType>(document.at("dtype"));
  deployment.max_tokens = document.at("max_tokens").get<std::int64_t>();
  if (document.contains("arch")) deployment.arch = document.at("arch").get<std::vector<std::string>>();
  deployment.checking = document.value("checking", false);
  for (const json& object : document.at("operations")) deployment.operations.push_back(operation_from(object));
  check_meaning(deployment, origin);
  return deployment;
}

Deployment Deployment::load(const std::filesystem::path& file) {
  return parse(runtime::read_deployment_file(file),
               fmt::format("deployment file {}", runtime::json_quoted(file.string())));
}

std::vector<KernelSpec> Deployment::kernels(const std::vector<std::string>& archs) const {
  const std::vector<std::string>& targets = archs.empty() ? arch : archs;
  if (targets.empty()) {
    throw Error(Code::kInvalidArgument, fmt::format("no architecture to compile deployment '{}' for", name),
                "none was given and the deployment has no \"arch\" key", "name one, for example sm_90a");
  }
  std::vector<KernelSpec> specs;
  std::unordered_set<std::string> seen;
  for (const std::string& target : targets) {
    for (const Operation& operation : operations) {
      for (KernelSpec spec : shapes_of(*this, operation, target)) {
        for (const Geometry& geometry : geometries(spec)) {
          spec.threads = geometry.threads;
          spec.cluster = geometry.cluster;
          spec.validate();
          if (seen.insert(spec.name() + '@' + target).second) specs.push_back(spec);
        }
      }
    }
    if (checking) specs.push_back(KernelSpec::call_check(world_size, target));
  }
  return specs;
}

}  // namespace commfuse
