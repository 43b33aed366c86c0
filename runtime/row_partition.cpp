#include "runtime/row_partition.hpp"

#include <algorithm>

namespace commfuse::runtime {

RowPartition balanced_partition(std::int64_t rows, int world_size) noexcept {
  RowPartition partition;
  std::int64_t end = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    end += rows / world_size + (rank < rows % world_size ? 1 : 0);
    partition.begin[static_cast<std::size_t>(rank) + 1] = static_cast<device::u32>(end);
  }
  partition.longest = (rows + world_size - 1) / world_size;
  partition.planned = rows;
  return partition;
}

Status check_rows(std::span<const std::int64_t> rows_of_ranks, int world_size, std::int64_t& rows) noexcept {
  constexpr std::int64_t kTooMany = std::int64_t{1} << 31;
  if (rows_of_ranks.size() != static_cast<std::size_t>(world_size)) {
    return {Code::kInvalidArgument, "rows_of_ranks", "must have one number for each rank"};
  }
  rows = 0;
  for (const std::int64_t count : rows_of_ranks) {
    if (count < 0 || count >= kTooMany) return {Code::kInvalidArgument, "rows_of_ranks", "must be 0 to 2^31 - 1"};
    rows += count;
  }
  if (rows >= kTooMany) return {Code::kInvalidArgument, "rows_of_ranks", "must be less than 2^31 together"};
  return {};
}

RowPartition explicit_partition(std::span<const std::int64_t> rows_of_ranks) noexcept {
  RowPartition partition;
  std::int64_t end = 0;
  for (std::size_t rank = 0; rank < rows_of_ranks.size(); ++rank) {
    end += rows_of_ranks[rank];
    partition.longest = std::max(partition.longest, rows_of_ranks[rank]);
    partition.begin[rank + 1] = static_cast<device::u32>(end);
  }
  const auto ranks = static_cast<std::int64_t>(rows_of_ranks.size());
  // Runs that a balanced partition would have too are planned like it.
  partition.planned = (end + ranks - 1) / ranks == partition.longest ? end : partition.longest * ranks;
  return partition;
}

std::uint32_t fingerprint(const RowPartition& partition, int world_size) noexcept {
  if (balanced_partition(partition.rows(world_size), world_size).begin == partition.begin) return 0;
  std::uint32_t word = 0x811c9dc5U;
  for (const std::uint32_t begin : partition.begin) word = (word ^ begin) * 0x01000193U;
  return word;
}

}  // namespace commfuse::runtime
