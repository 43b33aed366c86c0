// Where scales lie in memory, written down once more without the templates' formulas.
#pragma once

#include <cstdint>

namespace commfuse::reference {

enum class ScaleLayout { kSwizzled128x4 = 0, kSwizzled8x4 = 1, kLinear = 2 };

[[nodiscard]] std::uint64_t fp4_scale_bytes(ScaleLayout layout, std::uint64_t rows, std::uint64_t blocks);
[[nodiscard]] std::uint64_t fp4_scale_offset(ScaleLayout layout, std::uint64_t row, std::uint64_t block,
                                             std::uint64_t blocks);

}  // namespace commfuse::reference
