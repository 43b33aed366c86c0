// An all-reduce among processes, one rank each, on one host:
//
//   torchrun --no-python --nproc-per-node 4 multi_process      or      mpirun -n 4 multi_process
//
// Rank i sums i + 1 with the others and checks the result. Ranks take GPUs in turn; several may share one (start the
// CUDA MPS daemon then, so that their kernels run at the same time). On a machine with no GPU the ranks meet, say what
// is missing, and end with status 3.
#include <algorithm>
#include <chrono>
#include <commfuse/commfuse.hpp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda_calls.hpp"

namespace {

constexpr int kHiddenSize = 4096;
constexpr std::int64_t kTokens = 64;
constexpr std::chrono::seconds kPatience{60};
constexpr int kNoGpu = 3;  ///< exit status

std::uint16_t to_bf16(int small) {  // exact up to 256
  const auto number = static_cast<float>(small);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

/// Every kernel that an all-reduce of this size may choose.
std::vector<commfuse::KernelSpec> kernels_for(int world_size) {
  std::vector<commfuse::KernelSpec> kernels;
  commfuse::KernelSpec spec;
  spec.pattern = commfuse::Pattern::kAllReduce;
  spec.world_size = world_size;
  spec.hidden_size = kHiddenSize;
  spec.arch = commfuse::current_arch();
  for (const auto algorithm : {commfuse::Algorithm::kOneShot, commfuse::Algorithm::kTwoShot}) {
    spec.algorithm = algorithm;
    spec = spec.normalised();
    for (const commfuse::Geometry& geometry : geometries(spec)) {
      spec.threads = geometry.threads;
      spec.cluster = geometry.cluster;
      kernels.push_back(spec);
    }
  }
  return kernels;
}

int all_reduce(const commfuse::LaunchInfo& launch, commfuse::Exchange& exchange) {
  const example::Context context(example::device_of(launch.local_rank >= 0 ? launch.local_rank : launch.rank));
  const auto specs = kernels_for(exchange.size());
  const commfuse::KernelSet kernels = commfuse::KernelSet::warm_up(specs);
  agree_on_kernels(exchange, kernels.report(), kPatience);
  std::uint64_t bytes = 0;
  for (const commfuse::KernelSpec& spec : specs) bytes = std::max(bytes, required_rotation_bytes(spec, kTokens));

  // Collective: returns on every rank once all have mapped each other's memory, or throws the same error on all.
  commfuse::ProcessGroup group = commfuse::ProcessGroup::create(exchange, {.rotation_bytes = bytes});
  if (exchange.rank() == 0) std::printf("memory: %s\n", group.kind_reason().c_str());
  commfuse::AllReduce operation(kernels, group.workspace(), {.hidden_size = kHiddenSize});

  std::vector<std::uint16_t> host(static_cast<std::size_t>(kTokens * kHiddenSize), to_bf16(exchange.rank() + 1));
  const std::size_t matrix = host.size() * sizeof(host[0]);
  const example::Memory in(matrix);
  const example::Memory out(matrix);
  in.upload(host.data(), matrix);
  CUstream stream = context.new_stream();
  commfuse::AllReduceTensors tensors;
  tensors.in = in.pointer();
  tensors.out = out.pointer();
  const commfuse::Status status = operation.launch(tensors, kTokens, {}, stream);
  if (!status.ok()) throw std::runtime_error(status.text());
  EXAMPLE_CALL(cuStreamSynchronize, stream);
  if (const commfuse::Failure failure = group.workspace().failure(); failure.code != commfuse::Code::kOk) {
    throw std::runtime_error(failure.text());
  }
  out.download(host.data(), matrix);
  const int sum = exchange.size() * (exchange.size() + 1) / 2;
  const auto wrong =
      std::count_if(host.begin(), host.end(), [&](std::uint16_t value) { return value != to_bf16(sum); });
  std::printf("rank %d of %d: %s, %lld of %zu elements are %d\n", exchange.rank(), exchange.size(),
              wrong == 0 ? "right" : "WRONG", static_cast<long long>(host.size()) - static_cast<long long>(wrong),
              host.size(), sum);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main() try {
  const auto environment = commfuse::process_environment();
  const commfuse::LaunchInfo launch = commfuse::read_launch(environment);
  const auto exchange = commfuse::make_exchange_from_environment(environment, {}, kPatience);
  if (!example::has_gpu()) {
    std::fprintf(
        stderr,
        "multi_process: rank %d of %d has met the others, but cannot go on: it needs an NVIDIA GPU with a driver "
        "for CUDA 12 or later, and there is none here\n",
        launch.rank, launch.size);
    return kNoGpu;
  }
  return all_reduce(launch, *exchange);
} catch (const std::exception& error) {
  std::fprintf(stderr, "multi_process: %s\n", error.what());
  return 1;
}
