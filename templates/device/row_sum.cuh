// The sum of one number per vector over a whole row, in an order that depends on the row's length alone.
//
// A row is divided into groups of 32 consecutive vectors. Within a group the 32 numbers are added by a butterfly
// (distances 16, 8, 4, 2, 1; vectors beyond the row count as 0). The group sums are then added by 32 lanes: lane l
// folds the sums of groups l, l + 32, ... in that order, starting with 0, and a second butterfly adds the lanes. Each
// butterfly step adds the same two numbers on both sides and addition commutes, so all lanes end with the same bits.
// Whatever block or cluster computes it, a group is always the 32 lanes of one warp: the result does not depend on the
// geometry, and a token has the same norm alone, in a batch, in one-shot and in two-shot.
#pragma once

#include "device/ptx.cuh"

namespace commfuse::device {

constexpr u32 kWarp = 32;

COMMFUSE_DEVICE float butterfly_sum(float v) {
  COMMFUSE_UNROLL
  for (u32 distance = kWarp / 2; distance > 0; distance /= 2) v = ptx::add_rn(v, ptx::shuffle_xor(v, distance));
  return v;
}

/// How a team (one block, or the blocks of one cluster) covers a row of kVectors vectors: warp w of the team's W takes
/// groups w, w + W, ...; a thread holds at most kPerThread vectors.
template <u32 kRowVectors, u32 kThreads, u32 kCluster>
struct RowMap {
  static constexpr u32 kGroups = (kRowVectors + kWarp - 1) / kWarp;
  static constexpr u32 kTeamThreads = kThreads * kCluster;
  static constexpr u32 kPerThread = (kRowVectors + kTeamThreads - 1) / kTeamThreads;

  /// Index in the team.
  static COMMFUSE_DEVICE u32 thread() {
    if constexpr (kCluster == 1) return ptx::thread_index();
    return ptx::cluster_block_index() * kThreads + ptx::thread_index();
  }
  /// The k-th vector of this thread; beyond the row where has() is false.
  static COMMFUSE_DEVICE u32 vector(u32 k) { return k * kTeamThreads + thread(); }
  static COMMFUSE_DEVICE bool has(u32 k) {
    if constexpr (kRowVectors % kTeamThreads == 0) return true;
    return vector(k) < kRowVectors;
  }
};

/// Shared memory of a row sum. Two buffers used in turn: writing row i+1's sums cannot disturb a thread that still
/// reads row i's, and one that still reads row i-1's has not passed the barrier of row i.
template <class Map>
struct RowSumShared {
  float group_sum[2][Map::kGroups];
};

/// Adds `part[k]` over the whole row; every thread of the team must call it, with 0 for vectors that it does not have.
/// One barrier of the team. `row` counts the rows of this team, from 0.
template <class Map, u32 kCluster>
COMMFUSE_DEVICE float row_sum(const float (&part)[Map::kPerThread], u32 row, RowSumShared<Map>& shared) {
  float(&group_sum)[Map::kGroups] = shared.group_sum[row & 1];
  const u32 lane = ptx::thread_index() % kWarp;
  COMMFUSE_UNROLL
  for (u32 k = 0; k < Map::kPerThread; ++k) {
    const float sum = butterfly_sum(part[k]);
    const u32 group = Map::vector(k) / kWarp;
    if (group < Map::kGroups) {
      if constexpr (kCluster == 1) {
        if (lane == 0) group_sum[group] = sum;
      } else {
        if (lane < kCluster) ptx::store_shared_of_block(&group_sum[group], lane, sum);
      }
    }
  }
  if constexpr (kCluster == 1) {
    ptx::block_barrier();
  } else {
    ptx::cluster_barrier();
  }
  float sum = 0.0f;
  COMMFUSE_UNROLL
  for (u32 group = 0; group < Map::kGroups; group += kWarp) {
    sum = ptx::add_rn(sum, group + lane < Map::kGroups ? group_sum[group + lane] : 0.0f);
  }
  return butterfly_sum(sum);
}

}  // namespace commfuse::device
