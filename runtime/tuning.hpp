// A table of measured choices for the planner: which algorithm, kernel and grid was the fastest for how many tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"

namespace commfuse::runtime {

/// Patterns that do the same work per token share their measurements.
enum class PatternClass : int {
  kSum = 0,        ///< no norm: vectors stand for themselves
  kNorm = 1,       ///< needs whole rows
  kQuantised = 2,  ///< needs whole rows, and writes quantised values
};
[[nodiscard]] PatternClass pattern_class(Pattern pattern) noexcept;
[[nodiscard]] std::string_view to_string(PatternClass) noexcept;

/// The fastest launch for a range of tokens.
struct TuningChoice {
  std::int64_t up_to_tokens = 0;  ///< from the range before it, this number included
  Algorithm algorithm = Algorithm::kOneShot;
  Geometry geometry;
  int blocks = 0;  ///< cap of one rank; 0: as many as the planner allows
  [[nodiscard]] bool operator==(const TuningChoice&) const = default;
};

/// What was measured for one class of patterns and one shape.
struct TuningEntry {
  PatternClass pattern_class = PatternClass::kSum;
  DataType dtype = DataType::kBf16;
  int hidden_size = 0;
  int world_size = 0;
  std::vector<TuningChoice> choices;  ///< ascending in up_to_tokens, not empty

  /// The choice for so many tokens: the first range that reaches that far, else the last. For the launch path.
  [[nodiscard]] const TuningChoice& at(std::int64_t tokens) const noexcept;
  [[nodiscard]] bool operator==(const TuningEntry&) const = default;
};

/// The content of a tuning file (schemas/tuning.schema.json). A pure value: ranks that hold equal tables reach equal
/// plans. Ranks with different tables would not, so a group must compare to_json() when it is formed.
struct TuningTable {
  std::string device;  ///< as the driver names it
  int sm_count = 0;
  int ranks_on_device = 1;  ///< that shared the device when the times were taken
  std::vector<TuningEntry> entries;

  /// Reads and validates a file of at most 1 MiB. Throws Error(kNotFound, kIo, kInvalidInput); the cause names the JSON
  /// pointer, what was found and what is allowed.
  [[nodiscard]] static TuningTable load(const std::filesystem::path& file);
  /// As load, from text; `origin` names it in messages.
  [[nodiscard]] static TuningTable parse(std::string_view text, std::string_view origin = "tuning table");
  /// Canonical JSON: sorted keys, no white space. parse() reads it back to an equal table.
  [[nodiscard]] std::string to_json() const;

  /// Whether the times were taken on such a device, with as many ranks on it.
  [[nodiscard]] bool applies_to(std::string_view device_name, const DeviceCaps& caps) const noexcept;
  /// The entry for a kernel's shape (its algorithm and geometry are not looked at), or null.
  [[nodiscard]] const TuningEntry* find(const KernelSpec& shape) const noexcept;
  [[nodiscard]] bool operator==(const TuningTable&) const = default;
};

}  // namespace commfuse::runtime
