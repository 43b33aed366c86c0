// The least an engine does: load a deployment, warm up, launch. README.md shows this file.
#include <commfuse/commfuse.hpp>
#include <cstdio>

int main(int argc, char** argv) try {
  using namespace commfuse;
  if (argc < 2) return 2;
  // At start-up, with the engine's CUDA context current: every kernel compiled or taken from the cache, and loaded.
  const Deployment deployment = Deployment::load(argv[1]);
  const KernelSet kernels = KernelSet::warm_up(deployment);
  LoopbackGroup group(deployment.world_size, {.rotation_bytes = required_rotation_bytes(deployment)});
  AllReduce fused(kernels, group.workspace(0),
                  {.pattern = Pattern::kResidualRmsNorm, .hidden_size = deployment.hidden_size});
  // In every layer, on every rank: device pointers, the number of tokens, options, the stream.
  const AllReduceTensors tensors{};  // in, residual_in, gamma, residual_out, norm_out: the engine's
  const Status status = fused.launch(tensors, /*tokens=*/16, {.dependent_launch = true}, /*stream=*/nullptr);
  return status.code == Code::kOk ? 0 : 1;
} catch (const commfuse::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
