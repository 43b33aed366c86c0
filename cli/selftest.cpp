// commfuse selftest: runs every kernel of a deployment on all its ranks and compares with the reference.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"
#include "commfuse/engine.hpp"
#include "gpu/loopback.hpp"
#include "sim/kernels/list.hpp"
#include "sim/kernels/run.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

/// The simulator takes about a second for a token of a large kernel on all ranks.
const std::vector<std::int64_t> kSimulatorTokens = {1, 3};
const std::vector<std::int64_t> kGpuTokens = {1, 16, 130};
constexpr std::int64_t kMostSimulatorTokens = 16;

struct Arguments {
  std::filesystem::path file;
  std::filesystem::path cache_dir;
  std::vector<std::int64_t> tokens;
  bool require_gpu = false;
};

enum class Verdict { kPassed, kFailed, kNotRun };

struct Row {
  KernelSpec spec;
  std::int64_t tokens = 0;
  Verdict verdict = Verdict::kPassed;
  double milliseconds = 0;
  std::string report;
};

struct Outcome {
  std::string where;   ///< "GPU" or "simulator"
  std::string reason;  ///< why not the GPU
  std::vector<Row> rows;
};

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "FAILED";
    case Verdict::kNotRun:
      return "not run";
  }
  return "";
}

/// Runs `check`, which returns what is wrong, and notes how it went.
template <typename Check>
Row timed(const KernelSpec& spec, std::int64_t tokens, Check check) {
  Row row{.spec = spec, .tokens = tokens, .report = {}};
  const auto begin = std::chrono::steady_clock::now();
  try {
    row.report = check();
  } catch (const std::exception& error) {
    row.report = error.what();
  }
  row.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  row.verdict = row.report.empty() ? Verdict::kPassed : Verdict::kFailed;
  return row;
}

/// The kernels to run: the simulator's do not depend on the architecture, so one target is enough.
/// Announcements of calls compute nothing that could be compared.
std::vector<KernelSpec> kernels_for(const Deployment& deployment, const std::string& arch) {
  std::vector<KernelSpec> kernels = deployment.kernels({arch});
  std::erase_if(kernels, [](const KernelSpec& spec) { return spec.op == Op::kCallCheck; });
  return kernels;
}

Outcome run_in_simulator(const Deployment& deployment, const Arguments& arguments) {
  Outcome outcome;
  outcome.where = "simulator";
  std::vector<std::int64_t> tokens = arguments.tokens.empty() ? kSimulatorTokens : arguments.tokens;
  for (std::int64_t& count : tokens) count = std::min(count, kMostSimulatorTokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (const KernelSpec& spec : kernels_for(deployment, "sm_90a")) {
    for (const std::int64_t count : tokens) {
      if (sim::find_kernel(spec) == nullptr) {
        Row row{.spec = spec, .tokens = count, .report = "the simulator was compiled without this kernel"};
        row.verdict = Verdict::kNotRun;
        outcome.rows.push_back(row);
        continue;
      }
      outcome.rows.push_back(timed(spec, count, [&] {
        return sim::run_calls({{.spec = spec, .tokens = count}},
                              {.seed = static_cast<std::uint64_t>(count), .weak_memory = false, .preemption = false});
      }));
    }
  }
  return outcome;
}

Outcome run_on_gpu(const Deployment& deployment, const Arguments& arguments) {
  Outcome outcome;
  outcome.where = "GPU";
  const gpu::DeviceContext context;
  BuildOptions build;
  build.cache_dir = arguments.cache_dir;
  // All at once, so that what is missing is compiled in parallel; each is then loaded by itself.
  (void)KernelSet::warm_up(deployment, build);
  std::vector<std::int64_t> tokens = arguments.tokens.empty() ? kGpuTokens : arguments.tokens;
  for (std::int64_t& count : tokens) count = std::min(count, deployment.max_tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  const std::int64_t most = *std::max_element(tokens.begin(), tokens.end());
  const std::vector<KernelSpec> specs = kernels_for(deployment, current_arch());
  std::uint64_t bytes = 0;
  for (const KernelSpec& spec : specs) bytes = std::max(bytes, required_rotation_bytes(spec, most));
  gpu::Ranks ranks(deployment.world_size, bytes);
  std::uint64_t seed = 0;
  for (const KernelSpec& spec : specs) {
    // This kernel alone to choose from, so that each geometry is run and not only the planner's choice.
    const KernelSet kernel = KernelSet::warm_up(std::vector<KernelSpec>{spec}, build);
    for (const std::int64_t count : tokens) {
      ++seed;
      outcome.rows.push_back(timed(spec, count, [&]() -> std::string {
        gpu::GroupOperation operation(kernel, ranks, spec);
        gpu::PlacedCase placed(reference::make_case(spec, count, reference::Values::kNormal, seed));
        LaunchOptions options = gpu::options_of(placed.data());
        if (std::string refused = operation.launch(placed, options); !refused.empty()) return refused;
        if (std::string failure = ranks.synchronise(); !failure.empty()) {
          ranks.group().reset();
          return failure;
        }
        return placed.check();
      }));
    }
  }
  return outcome;
}

json document_of(const Deployment& deployment, const Outcome& outcome) {
  json document = {{"deployment", deployment.name}, {"ran_on", outcome.where}, {"runs", json::array()}};
  if (!outcome.reason.empty()) document["reason"] = outcome.reason;
  int failed = 0;
  int not_run = 0;
  for (const Row& row : outcome.rows) {
    failed += row.verdict == Verdict::kFailed ? 1 : 0;
    not_run += row.verdict == Verdict::kNotRun ? 1 : 0;
    document["runs"].push_back({{"kernel", row.spec.name()},
                                {"tokens", row.tokens},
                                {"result", to_string(row.verdict)},
                                {"milliseconds", row.milliseconds},
                                {"report", row.report}});
  }
  document["failed"] = failed;
  document["not_run"] = not_run;
  document["passed"] = static_cast<int>(outcome.rows.size()) - failed - not_run;
  return document;
}

std::string text_of(const Deployment& deployment, const Outcome& outcome, const json& document) {
  Table table({{"RANKS", Table::Align::kRight},
               {"TOKENS", Table::Align::kRight},
               {"TIME", Table::Align::kRight},
               {"RESULT"},
               {"KERNEL"}});
  std::string reports;
  for (const Row& row : outcome.rows) {
    table.add({std::to_string(row.spec.world_size), std::to_string(row.tokens),
               fmt::format("{:.0f} ms", row.milliseconds), std::string(to_string(row.verdict)), row.spec.name()});
    if (!row.report.empty()) reports += fmt::format("{} with {} tokens: {}\n", row.spec.name(), row.tokens, row.report);
  }
  std::string where = fmt::format("on the GPU, all {} ranks in loopback", deployment.world_size);
  if (outcome.where == "simulator") {
    where = fmt::format("in the simulator, with few tokens, because there is no GPU: {}", outcome.reason);
  }
  return fmt::format("{}{}{}\n{} passed, {} failed, {} not run; compared bit for bit with the reference, {}\n",
                     table.text(), reports.empty() ? "" : "\n", reports, document["passed"].get<int>(),
                     document["failed"].get<int>(), document["not_run"].get<int>(), where);
}

int selftest_file(const Arguments& arguments, bool as_json) {
  const Deployment deployment = load_deployment(arguments.file);
  const std::string reason = gpu::why_no_gpu();
  if (!reason.empty() && arguments.require_gpu) {
    throw Error(Code::kNotFound, "cannot run the self-test on a GPU", reason,
                "run it on a machine with a GPU, or without --require-gpu in the simulator");
  }
  Outcome outcome = reason.empty() ? run_on_gpu(deployment, arguments) : run_in_simulator(deployment, arguments);
  outcome.reason = reason;
  const json document = document_of(deployment, outcome);
  if (as_json) {
    print_document(document);
  } else {
    print(text_of(deployment, outcome, document));
  }
  return document["failed"] == 0 && document["not_run"] == 0 ? kDone : kFailed;
}

}  // namespace

void add_selftest(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "selftest",
                                  "Run every kernel on all ranks and compare with the reference, on the GPU or, where "
                                  "there is none, in the simulator",
                                  "commfuse selftest llama.json --tokens 1,16,512 --require-gpu");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "Deployment file")->required();
  command->add_option("--tokens", arguments->tokens, "Numbers of tokens")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command->add_option("--cache-dir", arguments->cache_dir, "Cache directory, else the usual one");
  command->add_flag("--require-gpu", arguments->require_gpu, "Fail where there is no GPU");
  command->callback([arguments, &session] {
    session.run = [arguments, &session] { return selftest_file(*arguments, session.json); };
  });
}

}  // namespace commfuse::cli
