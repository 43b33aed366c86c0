// Protocol errors planted into the all-reduce: the simulator and the reference must notice them.
#include <gtest/gtest.h>

#include "sim/ptx.hpp"

#include "device/params.cuh"
#include "sim/kernels/run.hpp"

namespace commfuse::sim {
namespace {

using device::AllReduceParams;
using device::ReduceScatterParams;
using device::u32;
using device::u64;
using device::Vec16;
namespace ptx = device::ptx;

KernelSpec two_ranks(Algorithm algorithm, Op op = Op::kAllReduce) {
  KernelSpec spec;
  spec.op = op;
  spec.pattern = Pattern::kResidualRmsNorm;
  spec.algorithm = algorithm;
  spec.world_size = 2;
  spec.hidden_size = 528;
  spec.threads = 64;
  spec.arch = "sm_90a";
  return spec;
}

/// The kernel as it is, for the faulty ones to call.
SimulatedKernel g_kernel = nullptr;

const AllReduceParams& common_of(const AllReduceParams& params) { return params; }
AllReduceParams& common_of(AllReduceParams& params) { return params; }
const AllReduceParams& common_of(const ReduceScatterParams& params) { return params.common; }
AllReduceParams& common_of(ReduceScatterParams& params) { return params.common; }

/// Forgets to empty the buffer of the call before: whatever is there stays and passes for data three calls later.
template <typename Params>
void skips_the_clear(const void* params) {
  ptx::store_weak(&common_of(*static_cast<const Params*>(params)).control->dirty_bytes, u64{0});
  g_kernel(params);
}

/// Tells a peer that a vector has arrived before it was sent.
template <typename Params>
void publishes_before_the_data(const void* params) {
  const AllReduceParams& common = common_of(*static_cast<const Params*>(params));
  const u64 epoch = ptx::load_weak(&common.control->epoch);
  const u32 peer = 1 - common.rank;
  auto* slot = reinterpret_cast<Vec16*>(common.peer_buffer[peer] + epoch % 3 * common.rotation_bytes);
  if (ptx::block_index() == 0 && ptx::thread_index() == 0) ptx::store_relaxed_sys(slot, Vec16{{0, 0, 0, 0}});
  g_kernel(params);
}

/// Reads what its own call before has written, without waiting for anything: it uses the buffer of the wrong call.
template <typename Params>
void uses_two_buffers(const void* params) {
  Params wrong = *static_cast<const Params*>(params);
  AllReduceParams& common = common_of(wrong);
  const u64 epoch = ptx::load_weak(&common.control->epoch);
  // Every third call lands where the one before it still lies.
  if (epoch % 3 == 2) {
    for (u32 rank = 0; rank < 2; ++rank) common.peer_buffer[rank] -= common.rotation_bytes;
  }
  g_kernel(&wrong);
}

device::PeerSignals* own_signals(const AllReduceParams& params) {
  return reinterpret_cast<device::PeerSignals*>(params.peer_buffer[params.rank] + 3 * params.rotation_bytes);
}

/// Takes a peer's earlier call for its present one: touches its tensors before it lets us.
void does_not_wait_for_the_start(const void* block) {
  const auto& params = *static_cast<const AllReduceParams*>(block);
  ptx::store_release_sys(&own_signals(params)->started[1 - params.rank], device::i64{1000});
  g_kernel(block);
}

/// Ends while the peer may still read the input.
void does_not_wait_for_the_end(const void* block) {
  const auto& params = *static_cast<const AllReduceParams*>(block);
  ptx::store_release_sys(&own_signals(params)->finished[1 - params.rank], device::i64{1000});
  g_kernel(block);
}

/// Whether any of 200 executions of six calls goes wrong, in whatever way.
bool is_caught(const KernelSpec& spec, SimulatedKernel faulty) {
  g_kernel = find_kernel(spec);
  std::vector<SimulatedCall> calls;
  for (int i = 0; i < 6; ++i) {
    calls.push_back({.spec = spec,
                     .tokens = 2,
                     .direct = spec.algorithm == Algorithm::kDirect ? ~0U : 0U,
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

const KernelSpec kOneShot = two_ranks(Algorithm::kOneShot);
const KernelSpec kTwoShot = two_ranks(Algorithm::kTwoShot);
const KernelSpec kDirect = two_ranks(Algorithm::kDirect);
const KernelSpec kScatter = two_ranks(Algorithm::kOneShot, Op::kReduceScatter);

TEST(PlantedFault, NoneIsReportedForTheKernelAsItIs) {
  EXPECT_FALSE(is_caught(kOneShot, nullptr));
  EXPECT_FALSE(is_caught(kTwoShot, nullptr));
  EXPECT_FALSE(is_caught(kDirect, nullptr));
  EXPECT_FALSE(is_caught(kScatter, nullptr));
}

TEST(PlantedFault, TouchingAPeersTensorsBeforeItsCallIsCaught) {
  EXPECT_TRUE(is_caught(kDirect, does_not_wait_for_the_start));
}

TEST(PlantedFault, EndingBeforeThePeersAreDoneIsCaught) { EXPECT_TRUE(is_caught(kDirect, does_not_wait_for_the_end)); }

TEST(PlantedFault, ASkippedClearIsCaught) {
  EXPECT_TRUE(is_caught(kOneShot, skips_the_clear<AllReduceParams>));
  EXPECT_TRUE(is_caught(kScatter, skips_the_clear<ReduceScatterParams>));
}

TEST(PlantedFault, PublishingBeforeTheDataIsCaught) {
  EXPECT_TRUE(is_caught(kOneShot, publishes_before_the_data<AllReduceParams>));
  EXPECT_TRUE(is_caught(kTwoShot, publishes_before_the_data<AllReduceParams>));
  EXPECT_TRUE(is_caught(kScatter, publishes_before_the_data<ReduceScatterParams>));
}

TEST(PlantedFault, OneBufferTooFewIsCaught) {
  EXPECT_TRUE(is_caught(kOneShot, uses_two_buffers<AllReduceParams>));
  EXPECT_TRUE(is_caught(kScatter, uses_two_buffers<ReduceScatterParams>));
}

}  // namespace
}  // namespace commfuse::sim
