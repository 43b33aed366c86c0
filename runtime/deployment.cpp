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

template <typename T>
std::vector<T> or_else(const std::vector<T>& values, std::vector<T> otherwise) {
  return values.empty() ? std::move(otherwise) : values;
}

Deployment::Operation operation_from(const json& object) {
  Deployment::Operation operation;
  operation.op = enum_from<Op>(object.at("op"));
  operation.patterns = enums_at<Pattern>(object, "patterns");
  operation.algorithms = or_else(enums_at<Algorithm>(object, "algorithms"), every<Algorithm>());
  operation.dtypes = enums_at<DataType>(object, "dtypes");
  operation.fp32_accumulate = {true};
  if (object.contains("fp32_accumulate")) {
    operation.fp32_accumulate = object.at("fp32_accumulate").get<std::vector<bool>>();
  }
  if (object.contains("hidden_sizes")) operation.hidden_sizes = object.at("hidden_sizes").get<std::vector<int>>();
  return operation;
}

[[noreturn]] void refuse(std::string_view origin, std::string_view pointer, std::string_view found,
                         std::string_view allowed) {
  throw Error(Code::kInvalidInput, fmt::format("{} is not valid", origin),
              fmt::format("{}: found {}; allowed: {}", pointer, found, allowed),
              "docs/deployment.md describes every key");
}

/// What the schema cannot say: rows are whole vectors of every type they are used with, and the product is bounded.
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
    shapes += static_cast<std::int64_t>(operation.patterns.size() * operation.algorithms.size() * dtypes.size() *
                                        hidden_sizes.size() * operation.fp32_accumulate.size());
  }
  if (shapes > kMaxShapes) {
    refuse(origin, "/operations", fmt::format("lists whose product is {} shapes of kernels", shapes),
           fmt::format("at most {} for one architecture", kMaxShapes));
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
      KernelSpec spec;
      spec.op = operation.op;
      spec.world_size = world_size;
      spec.arch = target;
      for (const Pattern pattern : operation.patterns) {
        spec.pattern = pattern;
        for (const Algorithm algorithm : or_else(operation.algorithms, every<Algorithm>())) {
          spec.algorithm = algorithm;
          for (const DataType each_dtype : or_else(operation.dtypes, {dtype})) {
            spec.dtype = each_dtype;
            for (const int each_hidden_size : or_else(operation.hidden_sizes, {hidden_size})) {
              spec.hidden_size = each_hidden_size;
              for (const Geometry& geometry : geometries(spec)) {
                spec.threads = geometry.threads;
                spec.cluster = geometry.cluster;
                for (const bool fp32_accumulate : or_else(operation.fp32_accumulate, {true})) {
                  spec.fp32_accumulate = fp32_accumulate || each_dtype == DataType::kFp32;
                  spec.validate();
                  if (seen.insert(spec.name() + '@' + target).second) specs.push_back(spec);
                }
              }
            }
          }
        }
      }
    }
  }
  return specs;
}

}  // namespace commfuse
