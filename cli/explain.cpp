// commfuse explain: which kernel the planner would launch, how, and why.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"
#include "commfuse/planner.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

constexpr const char* kAssumedArch = "sm_90a";

struct Arguments {
  std::filesystem::path file;
  std::vector<std::int64_t> tokens;
  std::vector<std::string> archs;
  DeviceCaps caps;
  int max_blocks = 0;
  bool dependent_launch = false;
  bool registered = false;
  std::filesystem::path table;
};

struct Row {
  std::int64_t tokens = 0;
  KernelSpec spec;
  Plan plan;
};

/// The kernels that the planner chooses from, one group for each thing that can be called.
std::vector<std::vector<KernelSpec>> choices(const std::vector<KernelSpec>& kernels) {
  const auto call_of = [](KernelSpec spec) {
    spec.algorithm = Algorithm::kOneShot;
    spec.threads = 0;
    spec.cluster = 1;
    return spec;
  };
  std::vector<std::vector<KernelSpec>> groups;
  for (const KernelSpec& spec : kernels) {
    if (spec.op == Op::kCallCheck) continue;  // announced, not planned
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& each) { return call_of(each.front()) == call_of(spec); });
    if (group == groups.end()) {
      groups.push_back({spec});
    } else {
      group->push_back(spec);
    }
  }
  return groups;
}

std::vector<std::string> archs_to_explain(const Deployment& deployment, const std::vector<std::string>& given) {
  if (!given.empty() || !deployment.arch.empty()) return archs_for(deployment, given);
  try {
    return archs_for(deployment, {});
  } catch (const UsageError&) {
    message_on_stderr(
        fmt::format("commfuse: no architecture given and no GPU here: explaining for {}\n", kAssumedArch));
    return {kAssumedArch};
  }
}

json document_of(const Deployment& deployment, const std::vector<Row>& rows) {
  json document = {{"deployment", deployment.name}, {"plans", json::array()}};
  for (const Row& row : rows) {
    document["plans"].push_back({{"tokens", row.tokens},
                                 {"arch", row.spec.arch},
                                 {"op", to_string(row.spec.op)},
                                 {"pattern", to_string(row.spec.pattern)},
                                 {"dtype", to_string(row.spec.dtype)},
                                 {"hidden_size", row.spec.hidden_size},
                                 {"fp32_accumulate", row.spec.fp32_accumulate},
                                 {"kernel", row.spec.name()},
                                 {"algorithm", to_string(row.spec.algorithm)},
                                 {"blocks", row.plan.blocks},
                                 {"threads", row.spec.threads},
                                 {"cluster", row.spec.cluster},
                                 {"reason", row.plan.reason}});
  }
  return document;
}

std::string text_of(const std::vector<Row>& rows, const Arguments& arguments) {
  Table table({{"TOKENS", Table::Align::kRight},
               {"BLOCKS", Table::Align::kRight},
               {"THREADS", Table::Align::kRight},
               {"CLUSTER", Table::Align::kRight},
               {"ALGORITHM"},
               {"ARCH"},
               {"KERNEL"},
               {"REASON"}});
  for (const Row& row : rows) {
    table.add({std::to_string(row.tokens), std::to_string(row.plan.blocks), std::to_string(row.spec.threads),
               std::to_string(row.spec.cluster), std::string(to_string(row.spec.algorithm)), row.spec.arch,
               row.spec.name(), std::string(row.plan.reason)});
  }
  return fmt::format("{}\n{} for a device of {} with {} on it\n", table.text(),
                     count_text(static_cast<std::int64_t>(rows.size()), "plan"),
                     count_text(arguments.caps.sm_count, "SM"), count_text(arguments.caps.ranks_on_device, "rank"));
}

int explain_file(Arguments arguments, bool as_json) {
  const Deployment deployment = load_deployment(arguments.file);
  PlannerTable table;
  if (!arguments.table.empty()) {
    table = PlannerTable::load(arguments.table);
    arguments.caps = table.caps();
  }
  const auto groups = choices(deployment.kernels(archs_to_explain(deployment, arguments.archs)));
  std::vector<Row> rows;
  for (const auto& group : groups) {
    for (const std::int64_t tokens : arguments.tokens) {
      const PlanRequest request{.kernels = group,
                                .tokens = tokens,
                                .algorithm = std::nullopt,
                                .max_blocks = arguments.max_blocks,
                                .dependent_launch = arguments.dependent_launch,
                                .measured = table.find(group.front()),
                                .registered = arguments.registered};
      const Plan chosen = plan(request, arguments.caps);
      rows.push_back({tokens, group.at(static_cast<std::size_t>(chosen.kernel)), chosen});
    }
  }
  if (as_json) {
    print_document(document_of(deployment, rows));
  } else {
    print(text_of(rows, arguments));
  }
  return kDone;
}

}  // namespace

void add_explain(CLI::App& app, Session& session) {
  CLI::App* command =
      add_command(app, session, "explain", "Show which kernel would run for a number of tokens, and why",
                  "commfuse explain llama.json --tokens 1,64,4096 --arch sm_90a");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "Deployment file")->required();
  command->add_option("--tokens", arguments->tokens, "Numbers of tokens")
      ->required()
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{0x7fffffff}));
  command->add_option("--arch", arguments->archs, "Architectures, else the file's, else that of the GPU here")
      ->delimiter(',');
  command->add_option("--sms", arguments->caps.sm_count, "Streaming multiprocessors of the device")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--ranks-on-device", arguments->caps.ranks_on_device, "Ranks that share the device")
      ->capture_default_str()
      ->check(CLI::Range(1, kMaxWorldSize));
  command->add_option("--max-blocks", arguments->max_blocks, "Cap on the blocks of a launch; 0: none")
      ->check(CLI::Range(0, 65535));
  command->add_flag("--registered", arguments->registered, "The tensors lie in registered buffers");
  command->add_option("--table", arguments->table, "A planner table of `commfuse tune`, and the device it is for");
  command->add_flag("--dependent-launch", arguments->dependent_launch, "The next kernel may start early");
  command->callback([arguments, &session] {
    session.run = [arguments, &session] { return explain_file(*arguments, session.json); };
  });
}

}  // namespace commfuse::cli
