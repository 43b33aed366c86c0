// Which rank has which rows where a call says so: consecutive runs, as long as each rank likes, some of them empty.
#pragma once

#include "device/ptx.cuh"

namespace commfuse::device {

class RowRuns {
 public:
  /// `begin[rank]` is the first row of a rank's run, `begin[rank + 1]` the end of it; in the parameter block.
  COMMFUSE_DEVICE RowRuns(const u32* begin, u32 longest) : begin_(begin), longest_(longest) {}
  COMMFUSE_DEVICE u32 begin(u32 rank) const { return begin_[rank]; }
  COMMFUSE_DEVICE u32 count(u32 rank) const { return begin_[rank + 1] - begin_[rank]; }
  /// The longest run.
  COMMFUSE_DEVICE u32 longest() const { return longest_; }

 private:
  const u32* begin_;
  u32 longest_;
};

}  // namespace commfuse::device
