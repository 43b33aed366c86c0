// An engine's start-up in small: read the deployment, warm up, capture a step into a CUDA graph, serve by replaying it.
//
//   engine_warmup DEPLOYMENT.json
//
// All ranks are played by this process on one GPU ("loopback"); a real engine has one rank per process. On a machine
// with no GPU it compiles the deployment's kernels into the cache, which is what an image build does, and says so.
#include <cuda.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include "commfuse/commfuse.hpp"
#include "cuda_calls.hpp"

namespace {

using commfuse::AllReduce;
using commfuse::Deployment;

/// One rank of the model: its tensors, its stream, its prepared operation.
struct Rank {
  example::Memory partial_sums, residual, norm, gamma;
  CUstream stream = nullptr;
  std::unique_ptr<AllReduce> all_reduce;
};

void serve(const Deployment& deployment) {
  constexpr std::int64_t kTokens = 16;
  constexpr int kReplays = 1000;
  const example::Context context;

  // Everything that can fail or take long happens here, before the engine reports itself ready.
  commfuse::KernelSet kernels = commfuse::KernelSet::warm_up(deployment);
  std::printf("warm: %d kernels from the cache, %d compiled, in %.0f ms\n", kernels.report().hits,
              kernels.report().compiled, kernels.report().milliseconds);
  commfuse::LoopbackGroup group(deployment.world_size, {.rotation_bytes = required_rotation_bytes(deployment)});

  const std::size_t matrix = static_cast<std::size_t>(kTokens * deployment.hidden_size * size_of(deployment.dtype));
  std::vector<Rank> ranks(static_cast<std::size_t>(deployment.world_size));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Rank& rank = ranks[i];
    rank.partial_sums = example::Memory(matrix);
    rank.residual = example::Memory(matrix);
    rank.norm = example::Memory(matrix);
    rank.gamma = example::Memory(matrix / kTokens);
    rank.stream = context.new_stream();
    rank.all_reduce =
        std::make_unique<AllReduce>(kernels, group.workspace(static_cast<int>(i)),
                                    commfuse::AllReduceKind{.pattern = commfuse::Pattern::kResidualRmsNorm,
                                                            .dtype = deployment.dtype,
                                                            .hidden_size = deployment.hidden_size});
  }

  // Ready. From here on a kernel that nobody thought of is an error, and not a compilation that all ranks wait for.
  kernels.seal();

  // A step of the model: here just the fused all-reduce, in place on the residual.
  const auto step = [&] {
    for (Rank& rank : ranks) {
      commfuse::AllReduceTensors tensors;
      tensors.in = rank.partial_sums.pointer();
      tensors.residual_in = tensors.residual_out = rank.residual.pointer();
      tensors.gamma = rank.gamma.pointer();
      tensors.norm_out = rank.norm.pointer();
      const commfuse::Status status = rank.all_reduce->launch(tensors, kTokens, {}, rank.stream);
      if (!status.ok()) throw std::runtime_error(status.text());
    }
  };
  std::vector<CUstream> streams;
  for (const Rank& rank : ranks) streams.push_back(rank.stream);
  const example::Graph graph(context, streams, step);
  const double microseconds = graph.replay(kReplays) / kReplays;
  for (int i = 0; i < group.world_size(); ++i) {
    if (const commfuse::Failure failure = group.workspace(i).failure(); failure.code != commfuse::Code::kOk) {
      throw std::runtime_error(failure.text());
    }
  }
  std::printf("served: %d replays of a step with %lld tokens on %d ranks, %.2f us each\n", kReplays,
              static_cast<long long>(kTokens), deployment.world_size, microseconds);
}

void prepare_image(const Deployment& deployment) {
  commfuse::BuildOptions options;
  if (deployment.arch.empty()) options.archs = {"sm_90a"};
  const commfuse::BuildReport report = precompile(deployment, options);
  if (report.failed > 0) throw std::runtime_error("a kernel did not compile");
  std::printf("no GPU here: %d kernels compiled and %d found in the cache, ready for a machine that has one\n",
              report.compiled, report.hits);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: engine_warmup DEPLOYMENT.json\n");
    return 2;
  }
  const Deployment deployment = Deployment::load(argv[1]);
  if (example::has_gpu()) {
    serve(deployment);
  } else {
    prepare_image(deployment);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "engine_warmup: %s\n", error.what());
  return 1;
}
