#include "cli/bench_traffic.hpp"

#include "commfuse/operations.hpp"
#include "runtime/pattern.hpp"

namespace commfuse::cli {

std::uint64_t unavoidable_bytes(const KernelSpec& shape, std::int64_t tokens) {
  const runtime::PatternTraits traits = runtime::traits_of(shape.pattern);
  const auto ranks = static_cast<std::uint64_t>(shape.world_size);
  const auto rows = static_cast<std::uint64_t>(tokens);
  const std::uint64_t elements = rows * static_cast<std::uint64_t>(shape.hidden_size);
  const std::uint64_t matrix = elements * static_cast<std::uint64_t>(size_of(shape.dtype));

  std::uint64_t once = 0;                // moved by one rank for all, or shared out among them
  std::uint64_t on_every_rank = matrix;  // the input
  std::uint64_t& results = shape.op == Op::kReduceScatter ? once : on_every_rank;
  if (traits.add) once += matrix;
  if (traits.residual) {
    once += matrix;
    (shape.residual_scattered ? once : results) += matrix;
  }
  if (traits.norm == device::Norm::kAttentionResidual) once += elements * sizeof(float) + rows * 2 * sizeof(float);
  const bool sum_out = traits.norm == device::Norm::kNone || traits.norm == device::Norm::kLatent;
  if (sum_out || traits.norm_out) results += matrix;
  if (traits.partial_out) once += matrix;
  if (traits.quantizer != device::Quantizer::kNone) {
    AllReduceKind kind;
    kind.pattern = shape.pattern;
    kind.dtype = shape.dtype;
    kind.hidden_size = shape.hidden_size;
    kind.quant_layout = shape.quant_layout;
    kind.group_size = shape.group_size;
    results += elements / (traits.quantizer == device::Quantizer::kFp4 ? 2 : 1) + scale_bytes(kind, tokens);
  }
  return on_every_rank * ranks + once;
}

double traffic_floor_us(std::uint64_t bytes, double gigabytes_per_second) {
  return static_cast<double>(bytes) / gigabytes_per_second / 1000;
}

}  // namespace commfuse::cli
