// What has been asked of a cache directory, by everybody who uses it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace commfuse::cache {

class Locks;

// In the writable directory, `usage.jsonl`: one JSON object a line, one line for each call that built kernels, appended
// by one write. Members, all optional: "hits", "compiled", "failed" (numbers), "misses" (object of numbers by Miss),
// "compile_ms" (object of milliseconds by phase). A line that is not that is passed over. When the file has grown to
// kMaxUsageBytes its lines are replaced by their sum. It informs; nothing depends on it.
inline constexpr auto kUsageFile = "usage.jsonl";
inline constexpr std::size_t kMaxUsageBytes = std::size_t{64} << 10;

struct Usage {
  std::uint64_t hits = 0;                       ///< kernels that were found at the first look
  std::uint64_t compiled = 0;                   ///< kernels compiled
  std::uint64_t failed = 0;                     ///< kernels that did not compile
  std::map<std::string, std::uint64_t> misses;  ///< by to_string(Miss)
  std::map<std::string, double> compile_ms;     ///< by phase; "total" is all of it

  [[nodiscard]] bool empty() const noexcept { return hits == 0 && compiled == 0 && failed == 0 && misses.empty(); }
  void add(const Usage& other);
  [[nodiscard]] std::string to_json() const;  ///< one line, without its end
  /// The sum of the lines of untrusted text.
  [[nodiscard]] static Usage parse_lines(std::string_view text);
};

/// Appends to the directory's file, and sums it up when it is large. An error loses the numbers and nothing else.
void record_usage(int directory, unsigned mode, const Locks& locks, const Usage& usage);
[[nodiscard]] Usage read_usage(int directory);

}  // namespace commfuse::cache
