#include "runtime/generator.hpp"

#include <fmt/format.h>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "device/params.cuh"

namespace commfuse::runtime {
namespace {

// The enumerators of the host and of templates/device/types.cuh are two lists of the same numbers.
template <typename Host, typename Device>
constexpr bool same(Host host, Device device) {
  return static_cast<int>(host) == static_cast<int>(device);
}
static_assert(same(DataType::kFp16, device::Type::kFp16));
static_assert(same(DataType::kBf16, device::Type::kBf16));
static_assert(same(DataType::kFp32, device::Type::kFp32));
static_assert(same(Pattern::kAllReduce, device::Pattern::kAllReduce));
static_assert(same(Pattern::kResidualRmsNorm, device::Pattern::kResidualRmsNorm));
static_assert(kMaxWorldSize == device::kMaxWorldSize);

std::string_view type_name(DataType dtype) {
  switch (dtype) {
    case DataType::kFp16:
      return "kFp16";
    case DataType::kBf16:
      return "kBf16";
    case DataType::kFp32:
      return "kFp32";
  }
  throw Error(Code::kInternal, "the generator does not know a data type", fmt::format("number {}", int(dtype)));
}

std::string_view pattern_name(Pattern pattern) {
  switch (pattern) {
    case Pattern::kAllReduce:
      return "kAllReduce";
    case Pattern::kResidualRmsNorm:
      return "kResidualRmsNorm";
  }
  throw Error(Code::kInternal, "the generator does not know a pattern", fmt::format("number {}", int(pattern)));
}

/// A kernel family: where its template is and what it is called there.
struct Family {
  std::string_view header;
  std::string_view function;
  std::string_view params;
  std::size_t params_size;
};

Family family_of(const KernelSpec& spec) {
  switch (spec.algorithm) {
    case Algorithm::kOneShot:
      return {"all_reduce.cuh", "all_reduce_one_shot", "AllReduceParams", sizeof(device::AllReduceParams)};
  }
  throw Error(Code::kInternal, "the generator does not know an algorithm",
              fmt::format("number {}", int(spec.algorithm)));
}

}  // namespace

std::string render_config(const KernelSpec& spec, std::string_view struct_name) {
  return fmt::format(R"(struct {name} {{
  static constexpr commfuse::device::u32 kWorldSize = {world_size};
  static constexpr commfuse::device::u32 kHiddenSize = {hidden_size};
  static constexpr commfuse::device::Type kType = commfuse::device::Type::{type};
  static constexpr commfuse::device::Pattern kPattern = commfuse::device::Pattern::{pattern};
  static constexpr bool kFp32Accumulate = {fp32_accumulate};
  static constexpr commfuse::device::u32 kThreads = {threads};
  static constexpr commfuse::device::u32 kCluster = {cluster};
}};
)",
                     fmt::arg("name", struct_name), fmt::arg("world_size", spec.world_size),
                     fmt::arg("hidden_size", spec.hidden_size), fmt::arg("type", type_name(spec.dtype)),
                     fmt::arg("pattern", pattern_name(spec.pattern)), fmt::arg("fp32_accumulate", spec.fp32_accumulate),
                     fmt::arg("threads", spec.threads), fmt::arg("cluster", spec.cluster));
}

std::string render_source(const KernelSpec& spec) {
  const Family family = family_of(spec);
  return fmt::format(R"(#include "{header}"

{config}
static_assert(sizeof(commfuse::device::{params}) == {params_size}, "the host has another parameter block");

extern "C" __global__ void __launch_bounds__({threads}, {min_blocks})
{name}(const __grid_constant__ commfuse::device::{params} params) {{
  commfuse::device::{function}<Config>(params);
}}
)",
                     fmt::arg("header", family.header), fmt::arg("config", render_config(spec, "Config")),
                     fmt::arg("params", family.params), fmt::arg("params_size", family.params_size),
                     fmt::arg("threads", spec.threads), fmt::arg("min_blocks", resident_blocks_per_sm(spec.threads)),
                     fmt::arg("name", spec.name()), fmt::arg("function", family.function));
}

}  // namespace commfuse::runtime
