// A cache of few kernels, filled by the real command once for all tests of the program.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "process/cli_process.hpp"

namespace commfuse::test {

class SmallCache {
 public:
  /// Throws if the kernels cannot be compiled.
  [[nodiscard]] static const SmallCache& get();

  /// Its deployment, and the list of its kernels that precompile wrote.
  [[nodiscard]] std::string deployment() const { return (folder_.path() / "small.json").string(); }
  [[nodiscard]] std::string manifest() const { return (folder_.path() / "small.kernels.json").string(); }
  [[nodiscard]] std::string cache() const { return (folder_.path() / "cache").string(); }
  /// Sorted.
  [[nodiscard]] const std::vector<std::string>& keys() const noexcept { return keys_; }

  /// Copies the cache to `target`.
  void copy_to(const std::filesystem::path& target) const;

 private:
  SmallCache();

  TemporaryFolder folder_;
  std::vector<std::string> keys_;
};

/// A test with a folder of its own and, in it, a copy of the small cache.
class CopiedCache : public testing::Test {
 protected:
  void SetUp() override { SmallCache::get().copy_to(cache()); }

  [[nodiscard]] std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  [[nodiscard]] std::string cache() const { return at("cache"); }
  [[nodiscard]] std::filesystem::path entry_file(const std::string& key, const std::string& ending) const {
    return std::filesystem::path(cache()) / key.substr(0, 2) / (key + ending);
  }
  /// As if the entry had last been used so many hours ago.
  void age(const std::string& key, int hours) const;
  /// `command` with --cache-dir and --json.
  [[nodiscard]] Outcome run(std::vector<std::string> command) const;

 private:
  TemporaryFolder folder_;
};

}  // namespace commfuse::test
