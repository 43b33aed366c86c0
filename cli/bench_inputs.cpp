#include "cli/bench_inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/command.hpp"
#include "runtime/spec_names.hpp"
#include "runtime/suggest.hpp"

namespace commfuse::cli {
namespace {

constexpr double kUsableMemory = 0.9;

Pattern pattern_named(const std::string& name) {
  if (const auto pattern = runtime::value_of<Pattern>(name)) return *pattern;
  std::vector<std::string> known;
  for (const auto& entry : runtime::kNames<Pattern>) known.emplace_back(entry.name);
  const std::string meant = runtime::closest_name(name, known);
  throw UsageError(Error(Code::kInvalidArgument, fmt::format("there is no pattern '{}'", name),
                         fmt::format("the patterns are {}", fmt::join(known, ", ")),
                         meant.empty() ? "" : fmt::format("did you mean '{}'?", meant)));
}

}  // namespace

std::vector<BenchShape> chosen_shapes(const Deployment& deployment, const std::vector<std::string>& names,
                                      const std::string& arch, std::optional<Op> only) {
  std::vector<Pattern> patterns;
  for (const std::string& name : names) patterns.push_back(pattern_named(name));
  std::vector<KernelSpec> kernels;
  for (const KernelSpec& kernel : deployment.kernels({arch})) {
    const bool wanted =
        patterns.empty() || std::find(patterns.begin(), patterns.end(), kernel.pattern) != patterns.end();
    if ((!only || kernel.op == *only) && wanted) kernels.push_back(kernel);
  }
  if (kernels.empty()) {
    throw UsageError(
        Error(Code::kInvalidArgument, fmt::format("deployment '{}' has nothing to measure", deployment.name),
              only ? fmt::format("it has no {} with one of the patterns that were asked for", to_string(*only))
                   : "it has none of the patterns that were asked for"));
  }
  return shapes_of(kernels);
}

std::vector<std::int64_t> chosen_tokens(const Deployment& deployment, const std::vector<std::int64_t>& given,
                                        std::vector<std::int64_t> usual) {
  if (given.empty()) {
    std::erase_if(usual, [&](std::int64_t count) { return count > deployment.max_tokens; });
    return usual;
  }
  for (const std::int64_t count : given) {
    if (count >= 1 && count <= deployment.max_tokens) continue;
    throw UsageError(Error(Code::kInvalidArgument, fmt::format("cannot measure {} tokens", count),
                           fmt::format("deployment '{}' is for 1 to {}", deployment.name, deployment.max_tokens)));
  }
  return given;
}

std::uint64_t largest_rotation(const std::vector<BenchShape>& shapes, const std::vector<std::int64_t>& tokens,
                               std::uint64_t free_bytes) {
  const auto usable = static_cast<std::uint64_t>(static_cast<double>(free_bytes) * kUsableMemory);
  std::uint64_t largest = 0;
  // The tensors of the longest call have to fit beside the buffers, whichever call those are for.
  for (const BenchShape& shape : shapes) {
    const std::int64_t longest = *std::max_element(tokens.begin(), tokens.end());
    for (const std::int64_t count : tokens) {
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        const std::uint64_t wanted = shape.rotation_bytes(count, {algorithm});
        if (device_bytes_needed(shape.spec, longest, wanted) <= usable) largest = std::max(largest, wanted);
      }
    }
  }
  return largest;
}

}  // namespace commfuse::cli
