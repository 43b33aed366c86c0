#include "cli/bench_report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/bench_published.hpp"
#include "cli/table.hpp"
#include "cli/units.hpp"
#include "commfuse/version.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

json optional_json(const std::optional<double>& value) { return value ? json(*value) : json(nullptr); }

std::string ratio_text(const std::optional<double>& ratio) { return ratio ? fmt::format("{:.2f}", *ratio) : "-"; }

json measurement_document(const BenchResult& result, const Measurement& each) {
  const Figures figures = figures_of(result, each);
  json document = {{"operation", each.title},
                   {"kernel", each.kernel.name()},
                   {"pattern", to_string(each.kernel.pattern)},
                   {"dtype", to_string(each.kernel.dtype)},
                   {"world_size", each.kernel.world_size},
                   {"hidden_size", each.kernel.hidden_size},
                   {"tokens", each.tokens},
                   {"algorithm", to_string(each.kernel.algorithm)},
                   {"threads", each.kernel.threads},
                   {"cluster", each.kernel.cluster},
                   {"blocks", each.blocks},
                   {"dependent_launch", each.dependent},
                   {"planned", each.planned},
                   {"checked_tokens", each.checked_tokens},
                   {"microseconds", optional_json(each.microseconds)},
                   {"latency_floor_us", figures.latency_floor_us},
                   {"latency_floor_ratio", optional_json(figures.of_latency_floor)},
                   {"traffic_floor_us", figures.traffic_floor_us},
                   {"traffic_floor_ratio", optional_json(figures.of_traffic_floor)},
                   {"published_us", optional_json(figures.published_us)},
                   {"published_best_us", optional_json(figures.published_best_us)},
                   {"published_best_ratio", optional_json(figures.of_published_best)}};
  if (!each.problem.empty()) document["problem"] = each.problem;
  return document;
}

Table empty_table() {
  constexpr auto kRight = Table::Align::kRight;
  return Table({{"TOKENS", kRight},
                {"ALGORITHM"},
                {"BLOCKS", kRight},
                {"THREADS", kRight},
                {"CLUSTER", kRight},
                {"PDL"},
                {"US", kRight},
                {"x LATENCY", kRight},
                {"x TRAFFIC", kRight},
                {"x PUBLIC", kRight}});
}

void add_row(Table& table, const BenchResult& result, const Measurement& each) {
  const Figures figures = figures_of(result, each);
  const std::string time = each.microseconds ? fmt::format("{:.2f}", *each.microseconds)
                           : each.failed     ? std::string("WRONG")
                                             : std::string("-");
  table.add({std::to_string(each.tokens),
             fmt::format("{}{}", to_string(each.kernel.algorithm), each.planned ? " *" : ""),
             std::to_string(each.blocks), std::to_string(each.kernel.threads), std::to_string(each.kernel.cluster),
             each.dependent ? "yes" : "no", time, ratio_text(figures.of_latency_floor),
             ratio_text(figures.of_traffic_floor), ratio_text(figures.of_published_best)});
}

std::string header_text(const BenchResult& result) {
  const LatencyFloors& floors = result.latency;
  std::string text = fmt::format(
      "{}, {} SMs, driver {}, NVRTC {}, commfuse {}\n"
      "{}: {} ranks on one GPU; median of {} replays of a graph of {} calls a rank\n\n"
      "Floors                     plain     PDL\n"
      "  latency: one flag        {:5.2f} us  {:5.2f} us a call\n"
      "  an empty kernel          {:5.2f} us  {:5.2f} us a call\n",
      result.machine.device, result.machine.sm_count, result.machine.driver, result.machine.nvrtc,
      COMMFUSE_VERSION_STRING, result.deployment, result.world_size, result.replays, result.calls, floors.flag_us,
      floors.flag_dependent_us, floors.empty_us, floors.empty_dependent_us);
  for (const CopySpeed& copy : result.copies) {
    text += fmt::format("  copy of {:<8} {:<8} {:.0f} GB/s, read plus written\n", bytes_text(copy.bytes),
                        copy.in_graph ? "in graph" : "plain", copy.gigabytes_per_second);
  }
  for (const HostCost& host : result.host) {
    text += fmt::format("Host: a prepared launch takes {:.0f} ns, cuLaunchKernelEx alone {:.0f} ns ({}, {})\n",
                        host.launch_ns, host.raw_ns, host.kernel, count_text(host.tokens, "token"));
  }
  return text;
}

}  // namespace

json bench_document(const BenchResult& result) {
  json document = {
      {"commfuse", COMMFUSE_VERSION_STRING},
      {"machine",
       {{"host", result.machine.host},
        {"device", result.machine.device},
        {"sms", result.machine.sm_count},
        {"driver", result.machine.driver},
        {"nvrtc", result.machine.nvrtc}}},
      {"deployment", result.deployment},
      {"world_size", result.world_size},
      {"method", {{"calls_per_graph", result.calls}, {"replays", result.replays}, {"dropped_replays", 2}}},
      {"floors",
       {{"latency_us", {{"plain", result.latency.flag_us}, {"dependent", result.latency.flag_dependent_us}}},
        {"empty_kernel_us", {{"plain", result.latency.empty_us}, {"dependent", result.latency.empty_dependent_us}}},
        {"copy_gb_per_s", fastest(result.copies)},
        {"copies", json::array()}}},
      {"host", json::array()},
      {"published_source", kPublishedSource},
      {"compile_count", result.compile_count},
      {"measurements", json::array()}};
  for (const CopySpeed& copy : result.copies) {
    document["floors"]["copies"].push_back(
        {{"bytes", copy.bytes}, {"in_graph", copy.in_graph}, {"gb_per_s", copy.gigabytes_per_second}});
  }
  for (const HostCost& host : result.host) {
    document["host"].push_back({{"kernel", host.kernel},
                                {"tokens", host.tokens},
                                {"launch_ns", host.launch_ns},
                                {"raw_launch_ns", host.raw_ns}});
  }
  for (const Measurement& each : result.measurements) {
    document["measurements"].push_back(measurement_document(result, each));
  }
  return document;
}

std::string bench_text(const BenchResult& result) {
  std::string text = header_text(result);
  std::string problems;
  for (std::size_t i = 0; i < result.measurements.size();) {
    const std::string& title = result.measurements[i].title;
    Table table = empty_table();
    for (; i < result.measurements.size() && result.measurements[i].title == title; ++i) {
      const Measurement& each = result.measurements[i];
      add_row(table, result, each);
      if (each.problem.empty()) continue;
      problems += fmt::format("{} with {}, {}: {}\n", title, count_text(each.tokens, "token"),
                              to_string(each.kernel.algorithm), each.problem);
    }
    text += fmt::format("\n{}\n{}", title, table.text());
  }
  text +=
      fmt::format("\n* the planner's choice. x PUBLIC: the better algorithm of {}.\n{}", kPublishedSource, problems);
  if (result.compile_count != 0) {
    text += fmt::format("{} while times were taken: they are not to be trusted\n",
                        count_text(static_cast<std::int64_t>(result.compile_count), "compilation"));
  }
  return text;
}

}  // namespace commfuse::cli
