#include "runtime/call_arguments.hpp"

#include <algorithm>

#include "device/scale_layout.cuh"
#include "runtime/pattern.hpp"

namespace commfuse::runtime {
namespace {

constexpr std::uintptr_t kAlignment = 16;

bool overlap_partly(const Argument& a, const Argument& b) noexcept {
  const auto a0 = reinterpret_cast<std::uintptr_t>(a.pointer);
  const auto b0 = reinterpret_cast<std::uintptr_t>(b.pointer);
  return a0 < b0 + b.bytes && b0 < a0 + a.bytes && !(a0 == b0 && a.bytes == b.bytes);
}

bool counts(const Argument& argument) noexcept { return argument.used && argument.bytes != 0; }

}  // namespace

Status check_arguments(std::span<const Argument> arguments) noexcept {
  for (const Argument& argument : arguments) {
    if (!counts(argument)) continue;
    if (argument.pointer == nullptr) return {Code::kInvalidArgument, argument.name, "is missing"};
    // Single numbers are read by themselves; everything else in whole vectors.
    const std::uintptr_t alignment = argument.bytes == sizeof(float) ? sizeof(float) : kAlignment;
    if (reinterpret_cast<std::uintptr_t>(argument.pointer) % alignment != 0) {
      return {Code::kInvalidArgument, argument.name, "is not aligned (tensors to 16 bytes, single numbers to 4)"};
    }
  }
  for (const Argument& output : arguments) {
    if (!counts(output) || !output.output) continue;
    for (const Argument& other : arguments) {
      if (&other == &output || !counts(other)) continue;
      // Two outputs in one place, or an output that is shifted against an input: somebody's data is lost.
      if (other.output && other.pointer == output.pointer) {
        return {Code::kInvalidArgument, output.name, "is the same memory as another output"};
      }
      if (overlap_partly(output, other)) {
        return {Code::kInvalidArgument, output.name, "overlaps another tensor (it may only be the very same matrix)"};
      }
    }
  }
  return {};
}

std::uint64_t scale_bytes(const KernelSpec& spec, std::int64_t rows_of_call, std::int64_t scale_stride) noexcept {
  const auto rows = static_cast<std::uint64_t>(rows_of_call);
  const auto columns = static_cast<std::uint64_t>(spec.hidden_size);
  const auto stride = static_cast<std::uint64_t>(scale_stride != 0 ? scale_stride : default_scale_stride(rows_of_call));
  switch (traits_of(spec.pattern).quantizer) {
    case device::Quantizer::kNone:
    case device::Quantizer::kFp8Tensor:
      return 0;
    case device::Quantizer::kFp8Block:
      return 4 * device::column_major_elements(rows, columns / device::kFp8BlockColumns, stride);
    case device::Quantizer::kFp8Token:
      return 4 * rows;
    case device::Quantizer::kFp8Group: {
      const auto groups = columns / static_cast<std::uint64_t>(std::max(spec.group_size, 1));
      return 4 * device::column_major_elements(rows, (groups + 3) / 4, stride);
    }
    case device::Quantizer::kFp4:
      return device::fp4_scale_bytes(static_cast<device::ScaleLayout>(spec.quant_layout), rows,
                                     columns / device::kFp4BlockColumns);
  }
  return 0;
}

Status check_scale_stride(std::int64_t stride, std::int64_t rows) noexcept {
  if (stride >= rows && stride % 4 == 0) return {};
  return {Code::kInvalidArgument, "scale_stride", "must be a multiple of 4 and at least the number of rows"};
}

}  // namespace commfuse::runtime
