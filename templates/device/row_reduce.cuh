// One number per vector, reduced over a whole row in an order that depends on the row's length alone.
//
// A row is divided into groups of 32 consecutive vectors. Within a group the 32 numbers are joined by a butterfly
// (distances 16, 8, 4, 2, 1; vectors beyond the row count as the neutral number). The groups' results are then joined
// by 32 lanes: lane l folds those of groups l, l + 32, ... in that order, starting with the neutral number, and a
// second butterfly joins the lanes. Each butterfly step joins the same two numbers on both sides and the operation
// commutes, so all lanes end with the same bits. Whatever block or cluster computes it, a group is always the 32 lanes
// of one warp: the result does not depend on the geometry, and a token has the same norm alone, in a batch, in one-shot
// and in two-shot.
#pragma once

#include "device/ptx.cuh"

namespace commfuse::device {

constexpr u32 kWarp = 32;

struct Sum {
  static constexpr float kNeutral = 0.0f;
  static COMMFUSE_DEVICE float join(float a, float b) { return ptx::add_rn(a, b); }
};
/// Of numbers that are not negative; a NaN loses against a number.
struct Max {
  static constexpr float kNeutral = 0.0f;
  static COMMFUSE_DEVICE float join(float a, float b) { return ptx::max_number(a, b); }
};

template <class Operation>
COMMFUSE_DEVICE float butterfly(float v) {
  COMMFUSE_UNROLL
  for (u32 distance = kWarp / 2; distance > 0; distance /= 2) {
    v = Operation::join(v, ptx::shuffle_xor(v, distance));
  }
  return v;
}

/// How a team (one block, or the blocks of one cluster) covers a row of kRowVectors vectors: warp w of the team's W
/// takes groups w, w + W, ...; a thread holds at most kPerThread vectors.
template <u32 kRowVectors, u32 kThreads, u32 kClusterBlocks>
struct RowMap {
  static constexpr u32 kCluster = kClusterBlocks;
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
  /// The group of vector(k); the same for all lanes of a warp. Beyond kGroups where no lane has a vector.
  static COMMFUSE_DEVICE u32 group(u32 k) { return vector(k) / kWarp; }
};

/// Reduces rows one after the other. Two buffers are used in turn: writing one row's group results cannot disturb a
/// thread that still reads those of the row before, and one that still reads the row before that has not passed the
/// barrier.
template <class Map>
class RowReducer {
 public:
  struct Shared {
    float group_result[2][Map::kGroups];
  };

  COMMFUSE_DEVICE explicit RowReducer(Shared& shared) : shared_(shared), turn_(0), cluster_runs_(false) {
    // Another block's shared memory may be written only once that block runs: tell that this one does, and look whether
    // the others do before the first write (by then they have long answered).
    if constexpr (Map::kCluster > 1) ptx::cluster_arrive();
  }

  /// Joins `part[k]` over the whole row. All threads of the team call it, with the neutral number for vectors that they
  /// do not have. One barrier of the team.
  template <class Operation>
  COMMFUSE_DEVICE float reduce(const float (&part)[Map::kPerThread]) {
    float(&group_result)[Map::kGroups] = shared_.group_result[turn_];
    turn_ ^= 1;
    if constexpr (Map::kCluster > 1) {
      if (!cluster_runs_) ptx::cluster_wait();
      cluster_runs_ = true;
    }
    const u32 lane = ptx::thread_index() % kWarp;
    COMMFUSE_UNROLL
    for (u32 k = 0; k < Map::kPerThread; ++k) {
      const float joined = butterfly<Operation>(part[k]);
      const u32 group = Map::group(k);
      if (group < Map::kGroups) {
        if constexpr (Map::kCluster == 1) {
          if (lane == 0) group_result[group] = joined;
        } else {
          if (lane < Map::kCluster) ptx::store_shared_of_block(&group_result[group], lane, joined);
        }
      }
    }
    if constexpr (Map::kCluster == 1) {
      ptx::block_barrier();
    } else {
      ptx::cluster_barrier();
    }
    float result = Operation::kNeutral;
    COMMFUSE_UNROLL
    for (u32 group = 0; group < Map::kGroups; group += kWarp) {
      result = Operation::join(result, group + lane < Map::kGroups ? group_result[group + lane] : Operation::kNeutral);
    }
    return butterfly<Operation>(result);
  }

 private:
  Shared& shared_;
  u32 turn_;
  bool cluster_runs_;
};

}  // namespace commfuse::device
