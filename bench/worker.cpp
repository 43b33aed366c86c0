#include "bench/worker.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "bench/workload.hpp"
#include "runtime/build.hpp"

extern char** environ;

namespace commfuse::bench {
namespace {

bool is_mapped(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

/// Not what getrusage says: that remembers the process which started this one.
long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  }
  throw std::runtime_error("/proc/self/status does not tell the memory");
}

struct Running {
  pid_t pid = -1;
  int output = -1;
};

Running start(std::vector<std::string> arguments, std::vector<std::string> environment) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addclose(&actions, ends[0]);
  ::posix_spawn_file_actions_addclose(&actions, ends[1]);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (std::string& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  };
  Running running;
  const int error = ::posix_spawn(&running.pid, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(),
                                  pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) throw std::runtime_error("cannot start a process");
  running.output = ends[0];
  return running;
}

WorkerReport finish(const Running& running) {
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = ::read(running.output, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  ::close(running.output);
  int status = 0;
  ::waitpid(running.pid, &status, 0);
  WorkerReport report;
  std::istringstream in(text);
  in >> report.compiled >> report.hits >> report.failed >> report.nvrtc_calls >> report.milliseconds >>
      report.nvrtc_mapped >> report.peak_kib;
  if (status != 0 || !in) throw std::runtime_error("a process did not end well: " + text);
  return report;
}

}  // namespace

int work(const std::vector<std::string>& arguments) {
  const Deployment deployment = deployment_of(std::stoi(arguments.at(1)));
  BuildOptions options;
  options.cache_dir = arguments.at(0);
  options.jobs = std::stoi(arguments.at(2));
  options.rank = std::stoi(arguments.at(3));
  options.ranks = std::stoi(arguments.at(4));
  const BuildReport report =
      runtime::build_kernels(deployment.kernels(), options, /*keep_cubins=*/true).report;  // as a warm-up does
  std::printf("%d %d %d %d %.3f %d %ld\n", report.compiled, report.hits, report.failed, report.nvrtc_calls,
              report.milliseconds, is_mapped("libnvrtc") ? 1 : 0, peak_kib());
  return 0;
}

std::vector<WorkerReport> run_workers(int count, const std::filesystem::path& folder, int hidden_sizes, int jobs,
                                      const std::map<std::string, std::string>& variables) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  std::vector<Running> running;
  for (int rank = 0; rank < count; ++rank) {
    running.push_back(start({"worker", "--worker", folder.string(), std::to_string(hidden_sizes), std::to_string(jobs),
                             std::to_string(rank), std::to_string(count)},
                            environment));
  }
  std::vector<WorkerReport> reports;
  for (const Running& each : running) reports.push_back(finish(each));
  return reports;
}

}  // namespace commfuse::bench
