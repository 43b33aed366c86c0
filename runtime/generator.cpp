#include "runtime/generator.hpp"

#include <fmt/format.h>

#include "commfuse/error.hpp"
#include "commfuse/planner.hpp"
#include "device/params.cuh"
#include "device/scale_layout.cuh"
#include "runtime/pattern.hpp"

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
static_assert(same(QuantLayout::kSwizzled128x4, device::ScaleLayout::kSwizzled128x4));
static_assert(same(QuantLayout::kSwizzled8x4, device::ScaleLayout::kSwizzled8x4));
static_assert(same(QuantLayout::kLinear, device::ScaleLayout::kLinear));
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

std::string_view norm_name(device::Norm norm) {
  switch (norm) {
    case device::Norm::kNone:
      return "kNone";
    case device::Norm::kRms:
      return "kRms";
    case device::Norm::kPreAndPost:
      return "kPreAndPost";
    case device::Norm::kAttentionResidual:
      return "kAttentionResidual";
    case device::Norm::kLatent:
      return "kLatent";
    case device::Norm::kDual:
      return "kDual";
  }
  throw Error(Code::kInternal, "the generator does not know a norm", fmt::format("number {}", int(norm)));
}

std::string_view quantizer_name(device::Quantizer quantizer) {
  switch (quantizer) {
    case device::Quantizer::kNone:
      return "kNone";
    case device::Quantizer::kFp8Tensor:
      return "kFp8Tensor";
    case device::Quantizer::kFp8Block:
      return "kFp8Block";
    case device::Quantizer::kFp8Token:
      return "kFp8Token";
    case device::Quantizer::kFp8Group:
      return "kFp8Group";
    case device::Quantizer::kFp4:
      return "kFp4";
  }
  throw Error(Code::kInternal, "the generator does not know a quantizer", fmt::format("number {}", int(quantizer)));
}

std::string_view layout_name(QuantLayout layout) {
  switch (layout) {
    case QuantLayout::kSwizzled128x4:
      return "kSwizzled128x4";
    case QuantLayout::kSwizzled8x4:
      return "kSwizzled8x4";
    case QuantLayout::kLinear:
      return "kLinear";
  }
  throw Error(Code::kInternal, "the generator does not know a layout", fmt::format("number {}", int(layout)));
}

}  // namespace

TemplateEntry template_of(const KernelSpec& spec) {
  switch (spec.op) {
    case Op::kAllReduce:
      if (spec.algorithm == Algorithm::kOneShot) {
        return {"all_reduce.cuh", "all_reduce_one_shot", "AllReduceParams", sizeof(device::AllReduceParams)};
      }
      return {"all_reduce_two_shot.cuh", "all_reduce_two_shot", "AllReduceParams", sizeof(device::AllReduceParams)};
    case Op::kCallCheck:
      return {"call_check.cuh", "call_check", "CallCheckParams", sizeof(device::CallCheckParams)};
    case Op::kReduceScatter:
      return {"reduce_scatter.cuh", "reduce_scatter", "ReduceScatterParams", sizeof(device::ReduceScatterParams)};
    case Op::kAllGather:
      return {"all_gather.cuh", "all_gather", "AllGatherParams", sizeof(device::AllGatherParams)};
  }
  throw Error(Code::kInternal, "the generator does not know an operation", fmt::format("number {}", int(spec.op)));
}

std::string render_config(const KernelSpec& spec, std::string_view struct_name) {
  if (spec.op == Op::kCallCheck) {
    return fmt::format(R"(struct {name} {{
  static constexpr commfuse::device::u32 kWorldSize = {world_size};
  static constexpr commfuse::device::u32 kThreads = {threads};
}};
)",
                       fmt::arg("name", struct_name), fmt::arg("world_size", spec.world_size),
                       fmt::arg("threads", spec.threads));
  }
  const PatternTraits traits = traits_of(spec.pattern);
  return fmt::format(
      R"(struct {name} {{
  static constexpr commfuse::device::u32 kWorldSize = {world_size};
  static constexpr commfuse::device::u32 kHiddenSize = {hidden_size};
  static constexpr commfuse::device::Type kType = commfuse::device::Type::{type};
  static constexpr bool kFp32Accumulate = {fp32_accumulate};
  static constexpr commfuse::device::Norm kNorm = commfuse::device::Norm::{norm};
  static constexpr bool kAdd = {add};
  static constexpr bool kResidual = {residual};
  static constexpr bool kResidualScattered = {residual_scattered};
  static constexpr bool kNormOut = {norm_out};
  static constexpr bool kNormOutOptional = {norm_out_optional};
  static constexpr bool kPartialOut = {partial_out};
  static constexpr commfuse::device::Quantizer kQuantizer = commfuse::device::Quantizer::{quantizer};
  static constexpr commfuse::device::ScaleLayout kScaleLayout = commfuse::device::ScaleLayout::{scale_layout};
  static constexpr commfuse::device::u32 kGroupColumns = {group_columns};
  static constexpr commfuse::device::Type kGammaType = commfuse::device::Type::{gamma_type};
  static constexpr bool kWeightBias = {weight_bias};
  static constexpr commfuse::device::u32 kLatentWidth = {latent_width};
  static constexpr commfuse::device::u32 kXWidth = {x_width};
  static constexpr commfuse::device::u32 kYWidth = {y_width};
  static constexpr commfuse::device::u32 kThreads = {threads};
  static constexpr commfuse::device::u32 kCluster = {cluster};
  static constexpr bool kDirect = {direct};
}};
)",
      fmt::arg("name", struct_name), fmt::arg("world_size", spec.world_size), fmt::arg("hidden_size", spec.hidden_size),
      fmt::arg("type", type_name(spec.dtype)), fmt::arg("fp32_accumulate", spec.fp32_accumulate),
      fmt::arg("norm", norm_name(traits.norm)), fmt::arg("add", traits.add), fmt::arg("residual", traits.residual),
      fmt::arg("residual_scattered", spec.residual_scattered), fmt::arg("norm_out", traits.norm_out),
      fmt::arg("norm_out_optional", has_optional_norm_out(spec)), fmt::arg("partial_out", traits.partial_out),
      fmt::arg("quantizer", quantizer_name(traits.quantizer)), fmt::arg("scale_layout", layout_name(spec.quant_layout)),
      fmt::arg("group_columns", spec.group_size), fmt::arg("gamma_type", type_name(spec.gamma_dtype)),
      fmt::arg("weight_bias", spec.weight_bias), fmt::arg("latent_width", spec.latent_width),
      fmt::arg("x_width", spec.q_lora_rank), fmt::arg("y_width", spec.kv_lora_rank), fmt::arg("threads", spec.threads),
      fmt::arg("cluster", spec.cluster), fmt::arg("direct", spec.algorithm == Algorithm::kDirect));
}

std::string render_source(const KernelSpec& spec) {
  const TemplateEntry entry = template_of(spec);
  return fmt::format(R"(#include "{header}"

{config}
static_assert(sizeof(commfuse::device::{params}) == {params_size}, "the host has another parameter block");

extern "C" __global__ void __launch_bounds__({threads}, {min_blocks})
{name}(const __grid_constant__ commfuse::device::{params} params) {{
  commfuse::device::{function}<Config>(params);
}}
)",
                     fmt::arg("header", entry.header), fmt::arg("config", render_config(spec, "Config")),
                     fmt::arg("params", entry.params), fmt::arg("params_size", entry.params_size),
                     fmt::arg("threads", spec.threads), fmt::arg("min_blocks", resident_blocks_per_sm(spec.threads)),
                     fmt::arg("name", spec.name()), fmt::arg("function", entry.function));
}

}  // namespace commfuse::runtime
