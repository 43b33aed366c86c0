#include "cli/bench_traffic.hpp"

#include "runtime/call_arguments.hpp"
#include "runtime/pattern.hpp"

namespace commfuse::cli {

std::uint64_t unavoidable_bytes(const KernelSpec& shape, std::int64_t tokens) {
  const runtime::PatternTraits traits = runtime::traits_of(shape.pattern);
  const auto ranks = static_cast<std::uint64_t>(shape.world_size);
  const auto rows = static_cast<std::uint64_t>(tokens);
  const std::uint64_t elements = rows * static_cast<std::uint64_t>(shape.hidden_size);
  const std::uint64_t matrix = elements * static_cast<std::uint64_t>(size_of(shape.dtype));

  if (shape.op == Op::kAllGather) {
    const std::uint64_t norms = matrix / static_cast<std::uint64_t>(shape.hidden_size) *
                                static_cast<std::uint64_t>(shape.q_lora_rank + shape.kv_lora_rank);
    const bool quantises = traits.quantizer != device::Quantizer::kNone;
    const std::uint64_t quantised =
        quantises ? rows * static_cast<std::uint64_t>(shape.q_lora_rank) + runtime::scale_bytes(shape, tokens, 0) : 0;
    return matrix + ranks * (matrix + norms + quantised);
  }
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
    results +=
        elements / (traits.quantizer == device::Quantizer::kFp4 ? 2 : 1) + runtime::scale_bytes(shape, tokens, 0);
  }
  return on_every_rank * ranks + once;
}

double traffic_floor_us(std::uint64_t bytes, double gigabytes_per_second) {
  return static_cast<double>(bytes) / gigabytes_per_second / 1000;
}

}  // namespace commfuse::cli
