#include "process/cli_small_cache.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace commfuse::test {

const SmallCache& SmallCache::get() {
  static const SmallCache cache;
  return cache;
}

SmallCache::SmallCache() {
  std::ofstream(deployment()) << R"({"name":"small","world_size":2,"hidden_size":1024,"dtype":"bf16","max_tokens":64,)"
                              << R"("operations":[{"op":"all_reduce","patterns":["all_reduce","residual_rms_norm"]}]})";
  const Outcome outcome = run_commfuse(
      {"precompile", deployment(), "--arch", "sm_90a", "--cache-dir", cache(), "--manifest", manifest(), "--json"});
  if (outcome.exit_code != 0) throw std::runtime_error(outcome.out + outcome.err);
  const nlohmann::json document = outcome.document();
  for (const auto& report : document.at("deployments").at(0).at("reports")) {
    keys_.push_back(report.at("key").get<std::string>());
  }
  std::sort(keys_.begin(), keys_.end());
  if (keys_.size() < 2) throw std::runtime_error("the small deployment has too few kernels for these tests");
}

void SmallCache::copy_to(const std::filesystem::path& target) const {
  std::filesystem::copy(cache(), target, std::filesystem::copy_options::recursive);
  std::filesystem::permissions(target, std::filesystem::perms::owner_all);
}

void CopiedCache::age(const std::string& key, int hours) const {
  const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours);
  for (const char* ending : {".json", ".cubin"}) std::filesystem::last_write_time(entry_file(key, ending), then);
}

Outcome CopiedCache::run(std::vector<std::string> command) const {
  command.insert(command.end(), {"--cache-dir", cache(), "--json"});
  return run_commfuse(command);
}

}  // namespace commfuse::test
