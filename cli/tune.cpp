// commfuse tune: find the fastest launch for every number of tokens.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "cli/bench_device.hpp"
#include "cli/bench_inputs.hpp"
#include "cli/bench_run.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "cli/tune_choose.hpp"
#include "cli/units.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;
using runtime::TuningEntry;
using runtime::TuningTable;

struct Arguments {
  std::filesystem::path file;
  std::filesystem::path out;
  std::filesystem::path cache_dir;
  std::vector<std::int64_t> tokens;
  bool dependent = false;
};

/// Everything measured for one entry of the table.
struct Sweep {
  BenchShape shape;
  std::vector<TuneSample> samples;
  std::vector<std::string> problems;
};

constexpr double kTolerance = 0.02;
/// A kernel that is so much slower than the best so far is not tried with fewer blocks.
constexpr double kHopeless = 2;
/// Results are checked with so few tokens: `commfuse bench` checks long calls.
constexpr std::int64_t kCheckedTokens = 64;

/// The first operation of each class of patterns and shape.
std::vector<BenchShape> representatives(const std::vector<BenchShape>& shapes) {
  std::vector<BenchShape> chosen;
  for (const BenchShape& shape : shapes) {
    const KernelSpec& spec = shape.spec;
    const bool known = std::any_of(chosen.begin(), chosen.end(), [&](const BenchShape& other) {
      return runtime::pattern_class(other.spec.pattern) == runtime::pattern_class(spec.pattern) &&
             other.spec.dtype == spec.dtype && other.spec.hidden_size == spec.hidden_size;
    });
    if (!known) chosen.push_back(shape);
  }
  return chosen;
}

/// Fewer calls where one takes long.
RunOptions run_options(std::int64_t tokens) {
  RunOptions options;
  options.calls = tokens <= 256 ? 50 : 10;
  options.replays = 9;
  return options;
}

/// One kernel by itself, so that the planner has no choice.
struct Candidate {
  KernelSpec spec;
  KernelSet set;
  gpu::GroupOperation operation;

  Candidate(const KernelSpec& kernel, const BuildOptions& build, gpu::Ranks& ranks)
      : spec(kernel),
        set(KernelSet::warm_up(std::vector<KernelSpec>{kernel}, build)),
        operation(set, ranks, gpu::kind_of(kernel)) {}
};

class Sweeper {
 public:
  Sweeper(gpu::Ranks& ranks, const KernelSet& all, const BuildOptions& build, bool dependent)
      : ranks_(ranks), all_(all), build_(build) {
    launch_.dependent_launch = launch_.trigger_early = dependent;
  }

  Sweep sweep(const BenchShape& shape, const std::vector<std::int64_t>& tokens, Progress& progress) {
    Sweep result{shape, {}, {}};
    gpu::GroupOperation free_choice(all_, ranks_, gpu::kind_of(shape.spec));
    std::vector<std::unique_ptr<Candidate>> candidates;
    for (const KernelSpec& kernel : shape.kernels) {
      candidates.push_back(std::make_unique<Candidate>(kernel, build_, ranks_));
    }
    int step = 0;
    for (const std::int64_t count : tokens) {
      progress.show(step++, static_cast<int>(tokens.size()),
                    fmt::format("{} {}", shape.title(), count_text(count, "token")));
      const Measurement planned = describe_call(free_choice, shape, count, launch_);
      BenchData data(shape.spec, count, kCheckedTokens);
      double best = 0;
      for (const auto& candidate : candidates) {
        if (required_rotation_bytes(candidate->spec, count) > ranks_.workspace(0).rotation_bytes()) continue;
        measure(*candidate, data, planned, best, result);
      }
    }
    return result;
  }

 private:
  void measure(Candidate& candidate, BenchData& data, const Measurement& planned, double& best, Sweep& result) {
    const Measurement uncapped = describe_call(candidate.operation, result.shape, data.tokens(), launch_);
    for (const int cap : block_caps(uncapped.blocks, candidate.spec.cluster)) {
      LaunchOptions launch = launch_;
      launch.max_blocks = cap;
      Measurement measured = describe_call(candidate.operation, result.shape, data.tokens(), launch);
      measure_call(ranks_, candidate.operation, data, launch, run_options(data.tokens()), measured);
      if (!measured.microseconds) {
        result.problems.push_back(
            fmt::format("{} with {}: {}", candidate.spec.name(), count_text(data.tokens(), "token"), measured.problem));
        return;
      }
      TuneSample sample;
      sample.tokens = data.tokens();
      sample.choice.algorithm = candidate.spec.algorithm;
      sample.choice.geometry = {candidate.spec.threads, candidate.spec.cluster};
      sample.choice.blocks = cap;
      sample.microseconds = *measured.microseconds;
      sample.planned = measured.kernel == planned.kernel && measured.blocks == planned.blocks;
      result.samples.push_back(sample);
      best = best == 0 ? sample.microseconds : std::min(best, sample.microseconds);
      if (sample.microseconds > best * kHopeless) return;
    }
  }

  gpu::Ranks& ranks_;
  const KernelSet& all_;
  const BuildOptions& build_;
  LaunchOptions launch_;
};

TuningEntry entry_of(const Sweep& sweep) {
  const KernelSpec& spec = sweep.shape.spec;
  return {runtime::pattern_class(spec.pattern), spec.dtype, spec.hidden_size, spec.world_size,
          choose(sweep.samples, kTolerance)};
}

/// The table's file. Written beside its place first: half a table must not take the place of a good one. Opened before
/// anything is measured, so that a wrong path costs no minutes.
class TableFile {
 public:
  explicit TableFile(std::filesystem::path file) : file_(std::move(file)), part_(file_.string() + ".part") {
    out_.open(part_, std::ios::binary | std::ios::trunc);
    if (!out_) fail(std::error_code(errno, std::generic_category()));
  }
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;
  ~TableFile() {
    std::error_code ignored;
    if (!done_) std::filesystem::remove(part_, ignored);
  }

  void write(const TuningTable& table) {
    out_ << json::parse(table.to_json()).dump(2) << '\n';
    out_.close();
    if (!out_) fail(std::error_code(errno, std::generic_category()));
    std::error_code error;
    std::filesystem::rename(part_, file_, error);
    if (error) fail(error);
    done_ = true;
  }

 private:
  [[noreturn]] void fail(const std::error_code& error) const {
    throw Error(Code::kIo, fmt::format("cannot write '{}'", file_.string()), error.message());
  }

  std::filesystem::path file_;
  std::filesystem::path part_;
  std::ofstream out_;
  bool done_ = false;
};

std::string text_of(const std::vector<Sweep>& sweeps, const TuningTable& table, const std::filesystem::path& out) {
  constexpr auto kRight = Table::Align::kRight;
  Table text({{"CLASS"},
              {"DTYPE"},
              {"HIDDEN", kRight},
              {"UP TO", kRight},
              {"ALGORITHM"},
              {"THREADS", kRight},
              {"CLUSTER", kRight},
              {"BLOCKS", kRight}});
  for (const TuningEntry& entry : table.entries) {
    for (const runtime::TuningChoice& choice : entry.choices) {
      text.add({std::string(to_string(entry.pattern_class)), std::string(to_string(entry.dtype)),
                std::to_string(entry.hidden_size), std::to_string(choice.up_to_tokens),
                std::string(to_string(choice.algorithm)), std::to_string(choice.geometry.threads),
                std::to_string(choice.geometry.cluster), choice.blocks == 0 ? "-" : std::to_string(choice.blocks)});
    }
  }
  std::string result = text.text() + '\n';
  for (const Sweep& sweep : sweeps) {
    result += fmt::format("{}: the planner's choice is at most {:.1f} % slower than the fastest of {}\n",
                          sweep.shape.title(), (worst_planned_ratio(sweep.samples) - 1) * 100,
                          count_text(static_cast<std::int64_t>(sweep.samples.size()), "measurement"));
    for (const std::string& problem : sweep.problems) result += fmt::format("  not measured: {}\n", problem);
  }
  return result + fmt::format("written to {}\n", out.string());
}

json document_of(const std::vector<Sweep>& sweeps, const TuningTable& table, const std::filesystem::path& out) {
  json document = {{"out", out.string()}, {"table", json::parse(table.to_json())}, {"sweeps", json::array()}};
  for (const Sweep& sweep : sweeps) {
    json samples = json::array();
    for (const TuneSample& sample : sweep.samples) {
      samples.push_back({{"tokens", sample.tokens},
                         {"algorithm", to_string(sample.choice.algorithm)},
                         {"threads", sample.choice.geometry.threads},
                         {"cluster", sample.choice.geometry.cluster},
                         {"blocks", sample.choice.blocks},
                         {"microseconds", sample.microseconds},
                         {"planned", sample.planned}});
    }
    document["sweeps"].push_back({{"operation", sweep.shape.title()},
                                  {"worst_planned_ratio", worst_planned_ratio(sweep.samples)},
                                  {"problems", sweep.problems},
                                  {"samples", std::move(samples)}});
  }
  return document;
}

int tune(const Arguments& arguments, bool as_json) {
  const Deployment deployment = load_deployment(arguments.file);
  std::vector<std::int64_t> usual;
  for (std::int64_t count = 1; count <= 8192; count *= 2) usual.push_back(count);
  const std::vector<std::int64_t> tokens = chosen_tokens(deployment, arguments.tokens, usual);
  TableFile out(arguments.out);
  const gpu::DeviceContext context;
  const std::vector<BenchShape> shapes = representatives(chosen_shapes(deployment, {}, current_arch(), Op::kAllReduce));
  std::vector<KernelSpec> kernels;
  for (const BenchShape& shape : shapes) kernels.insert(kernels.end(), shape.kernels.begin(), shape.kernels.end());

  std::vector<Sweep> sweeps;
  TuningTable table;
  {
    Progress progress;
    BuildOptions build;
    build.cache_dir = arguments.cache_dir;
    build.progress = [&](const KernelReport& kernel, int finished, int total) {
      progress.show(finished, total, kernel.spec.name());
    };
    const KernelSet all = KernelSet::warm_up(kernels, build);
    build.progress = nullptr;
    gpu::Ranks ranks(deployment.world_size, largest_rotation(shapes, tokens, free_device_bytes()));
    const BenchMachine machine = describe_machine();
    table.device = machine.device;
    table.sm_count = machine.sm_count;
    table.ranks_on_device = deployment.world_size;
    Sweeper sweeper(ranks, all, build, arguments.dependent);
    for (const BenchShape& shape : shapes) {
      sweeps.push_back(sweeper.sweep(shape, tokens, progress));
      if (!sweeps.back().samples.empty()) table.entries.push_back(entry_of(sweeps.back()));
    }
  }
  out.write(table);
  if (as_json) {
    print_document(document_of(sweeps, table, arguments.out));
  } else {
    print(text_of(sweeps, table, arguments.out));
  }
  const bool good =
      std::all_of(sweeps.begin(), sweeps.end(), [](const Sweep& sweep) { return sweep.problems.empty(); });
  return good ? kDone : kFailed;
}

}  // namespace

void add_tune(CLI::App& app, Session& session) {
  CLI::App* command =
      add_command(app, session, "tune", "Measure which kernel and grid is the fastest, all ranks on one GPU",
                  "commfuse tune llama.json --out h200.json");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "Deployment file")->required();
  command->add_option("--out", arguments->out, "Where to write the table (schemas/tuning.schema.json)")->required();
  command->add_option("--tokens", arguments->tokens, "Numbers of tokens, else the powers of two up to 8192")
      ->delimiter(',');
  command->add_flag("--dependent", arguments->dependent, "With programmatic dependent launch");
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [arguments, &session] { session.run = [arguments, &session] { return tune(*arguments, session.json); }; });
}

}  // namespace commfuse::cli
