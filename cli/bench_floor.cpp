#include "cli/bench_floor.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "cli/bench_graph.hpp"
#include "cli/bench_stats.hpp"
#include "commfuse/error.hpp"
#include "commfuse/spec.hpp"
#include "device/params.cuh"
#include "runtime/driver.hpp"

namespace commfuse::cli {
namespace {

constexpr const char* kFlagName = "commfuse_bench_flag";
constexpr const char* kEmptyName = "commfuse_bench_empty";
constexpr std::size_t kDroppedReplays = 2;

/// What the kernel in kFlagSource calls Params.
struct FlagParams {
  CUdeviceptr flags[kMaxWorldSize];
  CUdeviceptr state;
  std::uint32_t rank;
  std::uint32_t world_size;
};
static_assert(sizeof(FlagParams) == 144);

constexpr std::string_view kFlagSource = R"cuda(
struct Params {
  unsigned int* flags[16];  // of each rank: one word for each that writes there
  unsigned int* state;      // own: number of the last call; 1 once a wait was given up
  unsigned int rank;
  unsigned int world_size;
};

extern "C" __global__ void __launch_bounds__(32) commfuse_bench_flag(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const unsigned int lane = threadIdx.x;
  unsigned int call, failed;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(call), "=r"(failed) : "l"(p.state) : "memory");
  ++call;
  if (lane < p.world_size && lane != p.rank && failed == 0) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p.flags[lane] + p.rank), "r"(call) : "memory");
    const unsigned int* awaited = p.flags[p.rank] + lane;
    unsigned long long deadline = 0;
    for (unsigned int round = 1;; ++round) {
      unsigned int seen;
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(awaited) : "memory");
      if (static_cast<int>(seen - call) >= 0) break;
      if (round % 1024 != 0) continue;
      unsigned long long now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      if (deadline == 0) deadline = now + 2000000000ull;
      if (now > deadline) {
        failed = 1;
        break;
      }
    }
  }
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %0, 0;\n\tvote.sync.any.pred q, p, 0xffffffff;\n\t"
      "selp.u32 %0, 1, 0, q;\n\t}"
      : "+r"(failed)::"memory");
  if (lane == 0) asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p.state), "r"(call), "r"(failed) : "memory");
}
)cuda";

/// Both kernels let their successor start at once; without the launch attribute that changes nothing.
constexpr std::string_view kEmptySource = R"cuda(
struct Params {
  unsigned long long words[COMMFUSE_PARAM_WORDS];
};

extern "C" __global__ void commfuse_bench_empty(const __grid_constant__ Params) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
)cuda";

/// One rank's flags, and after them its state.
class FlagMemory {
 public:
  explicit FlagMemory(std::size_t ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      flags_.emplace_back(kMaxWorldSize * sizeof(std::uint32_t)).fill(0);
      states_.emplace_back(2 * sizeof(std::uint32_t)).fill(0);
    }
  }
  [[nodiscard]] FlagParams params(std::size_t rank) const {
    FlagParams params = {};
    for (std::size_t peer = 0; peer < flags_.size(); ++peer) params.flags[peer] = flags_[peer].pointer();
    params.state = states_[rank].pointer();
    params.rank = static_cast<std::uint32_t>(rank);
    params.world_size = static_cast<std::uint32_t>(flags_.size());
    return params;
  }
  void require_success() const {
    for (std::size_t rank = 0; rank < states_.size(); ++rank) {
      std::array<std::uint32_t, 2> state = {};
      states_[rank].download(state.data(), sizeof(state));
      if (state[1] == 0) continue;
      throw Error(Code::kTimeout, "cannot measure the latency floor",
                  fmt::format("rank {} waited two seconds for a flag in call {}", rank, state[0]),
                  "the streams of this process do not run side by side: is the device shared with other work?");
    }
  }

 private:
  std::vector<runtime::DeviceBuffer> flags_;
  std::vector<runtime::DeviceBuffer> states_;
};

template <typename Params>
double time_calls(const BenchKernel& kernel, std::vector<Params>& params, bool dependent,
                  const std::vector<CUstream>& streams, int calls, int replays) {
  const Graph graph(streams, calls, [&](int call, std::size_t rank) {
    // The first call of a stream has no kernel before it that it could overlap.
    kernel.launch({.dependent_launch = dependent && call > 0}, &params[rank], streams[rank]);
  });
  return microseconds_per_call(graph.replay(replays, streams[0]), kDroppedReplays, calls);
}

}  // namespace

runtime::Program flag_program(const std::string& arch) {
  return {kFlagName, std::string(kFlagSource), arch, "the benchmark's latency floor", {}};
}

runtime::Program empty_program(const std::string& arch) {
  constexpr std::size_t kWords = sizeof(device::AllReduceParams) / 8;
  return {kEmptyName,
          fmt::format("#define COMMFUSE_PARAM_WORDS {}\n{}", kWords, kEmptySource),
          arch,
          "the benchmark's empty kernel",
          {}};
}

BenchKernel::BenchKernel(const runtime::Nvrtc& nvrtc, const runtime::Program& program)
    : library_(runtime::compile(nvrtc, program).cubin, program.name) {
  CUkernel kernel = nullptr;
  COMMFUSE_DRIVER(cuLibraryGetKernel(&kernel, library_.get(), program.name.c_str()));
  COMMFUSE_DRIVER(cuKernelGetFunction(&function_, kernel));
  // Loads it now: a lazy load at the first launch would wait for the device.
  int registers = 0;
  COMMFUSE_DRIVER(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function_));
}

void BenchKernel::launch(const RawLaunch& shape, void* parameters, CUstream stream) const {
  std::array<CUlaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (shape.dependent_launch) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[count++].value.clusterDim = {shape.cluster, 1, 1};
  }
  CUlaunchConfig config{};
  config.gridDimX = shape.blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = shape.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = attributes.data();
  config.numAttrs = count;
  void* arguments[] = {parameters};
  COMMFUSE_DRIVER(cuLaunchKernelEx(&config, function_, arguments, nullptr));
}

LatencyFloors measure_latency_floors(const BenchKernel& flag, const BenchKernel& empty,
                                     const std::vector<CUstream>& streams, int calls, int replays) {
  const FlagMemory memory(streams.size());
  std::vector<FlagParams> params;
  for (std::size_t rank = 0; rank < streams.size(); ++rank) params.push_back(memory.params(rank));
  std::vector<device::AllReduceParams> nothing(streams.size());
  LatencyFloors floors;
  floors.flag_us = time_calls(flag, params, false, streams, calls, replays);
  floors.flag_dependent_us = time_calls(flag, params, true, streams, calls, replays);
  memory.require_success();
  floors.empty_us = time_calls(empty, nothing, false, streams, calls, replays);
  floors.empty_dependent_us = time_calls(empty, nothing, true, streams, calls, replays);
  return floors;
}

}  // namespace commfuse::cli
