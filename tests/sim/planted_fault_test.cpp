// Protocol errors planted into the all-reduce: the simulator and the reference must notice them.
#include <gtest/gtest.h>

#include "sim/ptx.hpp"

#include "device/params.cuh"
#include "sim/kernels/run.hpp"

namespace commfuse::sim {
namespace {

using device::AllReduceParams;
using device::u32;
using device::u64;
using device::Vec16;
namespace ptx = device::ptx;

KernelSpec two_ranks(Algorithm algorithm) {
  KernelSpec spec;
  spec.pattern = Pattern::kResidualRmsNorm;
  spec.algorithm = algorithm;
  spec.world_size = 2;
  spec.hidden_size = 528;
  spec.threads = 64;
  spec.arch = "sm_90a";
  return spec;
}

/// The kernel as it is, for the faulty ones to call.
AllReduceKernel g_kernel = nullptr;

/// Forgets to empty the buffer of the call before: whatever is there stays and passes for data three calls later.
void skips_the_clear(const AllReduceParams& params) {
  ptx::store_weak(&params.control->dirty_bytes, u64{0});
  g_kernel(params);
}

/// Tells a peer that a vector has arrived before it was sent.
void publishes_before_the_data(const AllReduceParams& params) {
  const u64 epoch = ptx::load_weak(&params.control->epoch);
  const u32 peer = 1 - params.rank;
  auto* slot = reinterpret_cast<Vec16*>(params.peer_buffer[peer] + epoch % 3 * params.rotation_bytes);
  if (ptx::block_index() == 0 && ptx::thread_index() == 0) ptx::store_relaxed_sys(slot, Vec16{{0, 0, 0, 0}});
  g_kernel(params);
}

/// Reads what its own call before has written, without waiting for anything: it uses the buffer of the wrong call.
void uses_two_buffers(const AllReduceParams& params) {
  AllReduceParams wrong = params;
  const u64 epoch = ptx::load_weak(&params.control->epoch);
  // Every third call lands where the one before it still lies.
  if (epoch % 3 == 2) {
    for (u32 rank = 0; rank < 2; ++rank) wrong.peer_buffer[rank] -= params.rotation_bytes;
  }
  g_kernel(wrong);
}

device::PeerSignals* own_signals(const AllReduceParams& params) {
  return reinterpret_cast<device::PeerSignals*>(params.peer_buffer[params.rank] + 3 * params.rotation_bytes);
}

/// Takes a peer's earlier call for its present one: touches its tensors before it lets us.
void does_not_wait_for_the_start(const AllReduceParams& params) {
  ptx::store_release_sys(&own_signals(params)->started[1 - params.rank], device::i64{1000});
  g_kernel(params);
}

/// Ends while the peer may still read the input.
void does_not_wait_for_the_end(const AllReduceParams& params) {
  ptx::store_release_sys(&own_signals(params)->finished[1 - params.rank], device::i64{1000});
  g_kernel(params);
}

/// Whether any of 200 executions of six calls goes wrong, in whatever way.
bool is_caught(Algorithm algorithm, AllReduceKernel faulty) {
  const KernelSpec spec = two_ranks(algorithm);
  g_kernel = find_kernel(spec);
  std::vector<SimulatedCall> calls;
  for (int i = 0; i < 6; ++i) {
    calls.push_back({.spec = spec,
                     .tokens = 2,
                     .direct = algorithm == Algorithm::kDirect ? ~0U : 0U,
                     .reuses_tensors = true,
                     .kernel = faulty});
  }
  for (const Options& options : executions(200)) {
    try {
      if (!run_calls(calls, options).empty()) return true;
    } catch (const Failure&) {
      return true;
    }
  }
  return false;
}

TEST(PlantedFault, NoneIsReportedForTheKernelAsItIs) {
  EXPECT_FALSE(is_caught(Algorithm::kOneShot, nullptr));
  EXPECT_FALSE(is_caught(Algorithm::kTwoShot, nullptr));
  EXPECT_FALSE(is_caught(Algorithm::kDirect, nullptr));
}

TEST(PlantedFault, TouchingAPeersTensorsBeforeItsCallIsCaught) {
  EXPECT_TRUE(is_caught(Algorithm::kDirect, does_not_wait_for_the_start));
}

TEST(PlantedFault, EndingBeforeThePeersAreDoneIsCaught) {
  EXPECT_TRUE(is_caught(Algorithm::kDirect, does_not_wait_for_the_end));
}

TEST(PlantedFault, ASkippedClearIsCaught) { EXPECT_TRUE(is_caught(Algorithm::kOneShot, skips_the_clear)); }

TEST(PlantedFault, PublishingBeforeTheDataIsCaught) {
  EXPECT_TRUE(is_caught(Algorithm::kOneShot, publishes_before_the_data));
  EXPECT_TRUE(is_caught(Algorithm::kTwoShot, publishes_before_the_data));
}

TEST(PlantedFault, OneBufferTooFewIsCaught) { EXPECT_TRUE(is_caught(Algorithm::kOneShot, uses_two_buffers)); }

}  // namespace
}  // namespace commfuse::sim
