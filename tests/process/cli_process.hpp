// Runs the real commfuse command.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace commfuse::test {

struct Outcome {
  int exit_code = -1;  ///< 128 + n for a process that signal n ended
  std::string out;
  std::string err;

  /// Of stdout, which must be exactly one JSON document.
  [[nodiscard]] nlohmann::json document() const;
};

/// A folder that is gone at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs `commfuse arguments...` to its end, stdin closed, with these variables added to (or, if empty, taken from) the
/// environment.
[[nodiscard]] Outcome run_commfuse(const std::vector<std::string>& arguments,
                                   const std::map<std::string, std::string>& variables = {});

}  // namespace commfuse::test
