// commfuse bench: how long the operations of a deployment take, all ranks on one GPU.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/directory.hpp"
#include "cli/bench_inputs.hpp"
#include "cli/bench_report.hpp"
#include "cli/bench_run.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/units.hpp"
#include "runtime/driver.hpp"
#include "runtime/spec_names.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::cli {
namespace {

/// How the ranks' calls are launched.
enum class Launching { kBoth, kPlain, kDependent };

struct Arguments {
  std::filesystem::path file;
  std::filesystem::path cache_dir;
  std::vector<std::int64_t> tokens;
  std::vector<std::string> patterns;
  std::string algorithm = "all";
  Launching launching = Launching::kBoth;
  RunOptions run;
};

std::vector<std::optional<Algorithm>> algorithms_named(const std::string& name) {
  if (name == "auto") return {std::nullopt};
  if (name == "all") return {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kDirect};
  return {runtime::value_of<Algorithm>(name)};
}

BenchResult measure(const Arguments& arguments) {
  const Deployment deployment = load_deployment(arguments.file);
  RunOptions options = arguments.run;
  options.tokens = chosen_tokens(deployment, arguments.tokens, {1, 16, 64, 128, 512, 2048});
  options.algorithms = algorithms_named(arguments.algorithm);
  if (arguments.launching != Launching::kDependent) options.dependent.push_back(false);
  if (arguments.launching != Launching::kPlain) options.dependent.push_back(true);

  const gpu::DeviceContext context;
  const std::string arch = current_arch();
  const std::vector<BenchShape> shapes = chosen_shapes(deployment, arguments.patterns, arch);
  std::vector<KernelSpec> kernels;
  for (const BenchShape& shape : shapes) kernels.insert(kernels.end(), shape.kernels.begin(), shape.kernels.end());

  BenchResult result;
  result.machine = describe_machine();
  result.deployment = deployment.name;
  result.world_size = deployment.world_size;
  result.calls = options.calls;
  result.replays = options.replays;

  Progress progress;
  const int steps =
      static_cast<int>(shapes.size() * options.tokens.size() * options.algorithms.size() * options.dependent.size());
  int step = 0;
  options.progress = [&](const std::string& what) { progress.show(step++, steps, what); };
  BuildOptions build;
  build.cache_dir = arguments.cache_dir;
  build.progress = [&](const KernelReport& kernel, int finished, int total) {
    progress.show(finished, total, kernel.spec.name());
  };
  const KernelSet set = KernelSet::warm_up(kernels, build);
  runtime::Toolchains toolchains(
      env(), runtime::ToolchainMemo(cache::find_directories(cache::Environment::of_process(), arguments.cache_dir)),
      runtime::driver().version());
  runtime::Toolchain& toolchain = toolchains.for_arch(arch);
  result.machine.nvrtc = toolchain.build();
  const BenchKernel flag(toolchain.nvrtc(), flag_program(arch));
  const BenchKernel empty(toolchain.nvrtc(), empty_program(arch));

  const std::uint64_t compiled_before = runtime::nvrtc_calls();
  {
    const gpu::StreamHandle stream;
    result.copies = measure_copies(stream.get());
  }
  gpu::Ranks ranks(deployment.world_size, largest_rotation(shapes, options.tokens, free_device_bytes()));
  std::vector<CUstream> streams;
  for (int rank = 0; rank < ranks.size(); ++rank) streams.push_back(ranks.stream(rank));
  result.latency = measure_latency_floors(flag, empty, streams, options.calls, options.replays);
  for (const BenchShape& shape : shapes) {
    const std::vector<Measurement> measured = measure_shape(set, ranks, shape, options);
    result.measurements.insert(result.measurements.end(), measured.begin(), measured.end());
  }
  if (!result.failed()) {
    result.host.push_back(measure_host_cost(set, ranks, shapes.front(), options.tokens.front(), empty));
  }
  result.compile_count = runtime::nvrtc_calls() - compiled_before;
  return result;
}

int bench(const Arguments& arguments, bool as_json) {
  const BenchResult result = measure(arguments);
  if (as_json) {
    print_document(bench_document(result));
  } else {
    print(bench_text(result));
  }
  return result.failed() ? kFailed : kDone;
}

}  // namespace

void add_bench(CLI::App& app, Session& session) {
  CLI::App* command =
      add_command(app, session, "bench", "Time a deployment's operations, all ranks on one GPU",
                  "commfuse bench llama.json --tokens 1,16,2048 --patterns residual_rms_norm --json > times.json");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "Deployment file")->required();
  command->add_option("--tokens", arguments->tokens, "Numbers of tokens, else 1,16,64,128,512,2048")->delimiter(',');
  command->add_option("--patterns", arguments->patterns, "Patterns, else all of the deployment")->delimiter(',');
  command
      ->add_option(
          "--algorithm", arguments->algorithm,
          "one_shot, two_shot, direct (all tensors registered), all that the deployment has, or auto: the planner's "
          "choice")
      ->check(CLI::IsMember({"one_shot", "two_shot", "direct", "all", "auto"}))
      ->capture_default_str();
  command
      ->add_flag_callback(
          "--dependent", [arguments] { arguments->launching = Launching::kDependent; },
          "Only with programmatic dependent launch; else with and without")
      ->excludes(command->add_flag_callback(
          "--no-dependent", [arguments] { arguments->launching = Launching::kPlain; }, "Only without it"));
  command->add_option("--replays", arguments->run.replays, "Replays of the graph; the first two do not count")
      ->check(CLI::Range(3, 10000))
      ->capture_default_str();
  command->add_option("--calls", arguments->run.calls, "Calls of one rank in the graph")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [arguments, &session] { session.run = [arguments, &session] { return bench(*arguments, session.json); }; });
}

}  // namespace commfuse::cli
