// Which rank owns which rows: M rows in N runs of consecutive rows, as even as can be, the longer runs first.
#pragma once

#include "device/ptx.cuh"
#include "device/types.cuh"

namespace commfuse::device {

template <u32 kRanks>
class Partition {
 public:
  COMMFUSE_DEVICE explicit Partition(u32 rows) : quotient_(rows / kRanks), remainder_(rows % kRanks) {}
  COMMFUSE_DEVICE u32 begin(u32 rank) const { return rank * quotient_ + ptx::min_u32(rank, remainder_); }
  COMMFUSE_DEVICE u32 count(u32 rank) const { return quotient_ + (rank < remainder_ ? 1 : 0); }
  /// The longest run.
  COMMFUSE_DEVICE u32 longest() const { return quotient_ + (remainder_ > 0 ? 1 : 0); }
  COMMFUSE_DEVICE bool owns(u32 rank, u32 row) const { return row - begin(rank) < count(rank); }

 private:
  u32 quotient_;
  u32 remainder_;
};

}  // namespace commfuse::device
