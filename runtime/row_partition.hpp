// How many rows each rank has in one call.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "commfuse/error.hpp"
#include "device/params.cuh"

namespace commfuse::runtime {

/// Consecutive runs of rows, one for each rank in ascending order.
struct RowPartition {
  std::array<device::u32, device::kMaxWorldSize + 1> begin{};  ///< [world size]: all rows
  std::int64_t longest = 0;                                    ///< rows of the longest run
  std::int64_t planned = 0;  ///< tokens of the balanced call that is sized and planned like this one

  [[nodiscard]] std::int64_t count(int rank) const noexcept {
    return begin[static_cast<std::size_t>(rank) + 1] - begin[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::int64_t rows(int world_size) const noexcept { return begin[static_cast<std::size_t>(world_size)]; }
};

/// Even runs, the first ones a row longer where there is a rest. `rows` is below 2^31.
[[nodiscard]] RowPartition balanced_partition(std::int64_t rows, int world_size) noexcept;

/// Refuses numbers of rows that are not one for each rank, negative, or too many; `rows` is their sum.
[[nodiscard]] Status check_rows(std::span<const std::int64_t> rows_of_ranks, int world_size,
                                std::int64_t& rows) noexcept;

/// Runs of the given lengths, one for each rank, none negative, their sum below 2^31.
[[nodiscard]] RowPartition explicit_partition(std::span<const std::int64_t> rows_of_ranks) noexcept;

/// Stands for the runs where ranks compare their calls (FNV-1a of them); 0 where they are balanced.
[[nodiscard]] std::uint32_t fingerprint(const RowPartition& partition, int world_size) noexcept;

}  // namespace commfuse::runtime
