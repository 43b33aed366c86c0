#include "runtime/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/env.hpp"

namespace commfuse::runtime {
namespace {

/// NVRTC itself, and what a further program at the same time adds, with room: 130 MB and 10 to 20 MB were measured.
constexpr std::uint64_t kBaseBytes = std::uint64_t{150} << 20;
constexpr std::uint64_t kBytesPerJob = std::uint64_t{50} << 20;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::optional<std::uint64_t> read_number(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  if (in >> value) return value;  // "max", which means no limit, is no number
  return std::nullopt;
}

std::uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  std::string unit;
  std::uint64_t kilobytes = 0;
  while (in >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    std::getline(in, unit);
  }
  return std::numeric_limits<std::uint64_t>::max();
}

/// The path of this process below the root of the control groups; empty where it is not told.
std::string cgroup_path(const std::filesystem::path& root, const std::string& controller) {
  std::ifstream in(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {  // "0::/a/b", or for version 1 "4:memory:/a/b"
    const std::string tag = ":" + controller + ":";
    const std::size_t at = line.find(tag);
    if (at != std::string::npos) return line.substr(at + tag.size());
  }
  return {};
}

}  // namespace

std::optional<std::uint64_t> cgroup_memory_left(const std::filesystem::path& root) {
  struct Layout {
    const char* controller;
    const char* mount;
    const char* limit;
    const char* used;
  };
  static constexpr Layout kLayouts[] = {
      {"", "sys/fs/cgroup", "memory.max", "memory.current"},
      {"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
  };
  std::optional<std::uint64_t> left;
  for (const Layout& layout : kLayouts) {
    const std::filesystem::path mount = root / layout.mount;
    // A limit of any group above ours holds for us too. In a container the path is often one of the host's, of which
    // only the mount's root exists.
    std::filesystem::path path = cgroup_path(root, layout.controller);
    while (true) {
      const std::filesystem::path group = mount / path.relative_path();
      const auto limit = read_number(group / layout.limit);
      if (limit) {
        const std::uint64_t used = read_number(group / layout.used).value_or(0);
        const std::uint64_t rest = *limit > used ? *limit - used : 0;
        left = std::min(left.value_or(rest), rest);
      }
      if (path.relative_path().empty()) break;
      path = path.parent_path();
    }
  }
  return left;
}

int choose_jobs(int requested, std::size_t work) {
  const int most = static_cast<int>(std::clamp<std::size_t>(work, 1, 1024));
  if (requested > 0) return std::min(requested, most);
  if (env().jobs > 0) return std::min(env().jobs, most);
  const std::uint64_t memory =
      std::min(available_memory(), cgroup_memory_left().value_or(std::numeric_limits<std::uint64_t>::max()));
  const std::uint64_t fit = memory > kBaseBytes ? (memory - kBaseBytes) / kBytesPerJob : 0;
  return std::max(1, static_cast<int>(std::min<std::uint64_t>(fit, std::min(usable_cores(), most))));
}

void for_each_parallel(std::size_t count, int jobs, const std::function<void(std::size_t)>& task) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::jthread> helpers;
  try {
    for (int i = 1; i < jobs; ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads: those that there are do it
  }
  work();
}

}  // namespace commfuse::runtime
