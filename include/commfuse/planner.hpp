// The planner: a pure function from a shape and a device to a launch. It calls no driver, reads no clock and no free
// memory, so ranks that see the same shapes reach the same plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commfuse/spec.hpp"

namespace commfuse {

/// What the planner knows of the device. Equal on all ranks of a group (checked when the group is formed).
struct DeviceCaps {
  int sm_count = 132;
  int ranks_on_device = 1;  ///< ranks that share this GPU (loopback, MPS): their blocks must be resident together
};

/// Threads per block and blocks per cluster (the team that handles one token) of a kernel.
struct Geometry {
  int threads = 0;
  int cluster = 1;
  [[nodiscard]] bool operator==(const Geometry&) const = default;
};

/// The geometries that a kernel of this shape (its `threads` and `cluster` are not looked at) is compiled with: first
/// the one for few tokens, which spreads a row over a cluster so that many SMs share its loads, then, where it differs,
/// the one for many tokens. A plan takes one of them by the number of tokens. Results do not depend on it: the order of
/// every sum is fixed by the hidden size alone (templates/device/row_reduce.cuh).
[[nodiscard]] std::vector<Geometry> geometries(const KernelSpec& shape);

/// Blocks of such a kernel that one SM can hold at once, as its launch bounds promise to the compiler; the loader
/// refuses a cubin that does not keep the promise. (A register count of one build must not enter: ranks could differ.)
[[nodiscard]] int resident_blocks_per_sm(int threads) noexcept;

namespace runtime {
struct TuningEntry;
struct TuningTable;
}  // namespace runtime

/// Which launch was the fastest for how many tokens, as `commfuse tune` measured it on one kind of device
/// (schemas/tuning.schema.json). An immutable value, cheap to copy. An empty one says nothing, and the planner goes by
/// its rules.
class PlannerTable {
 public:
  PlannerTable() = default;
  /// Throws Error(kNotFound, kIo) or Error(kInvalidInput), whose cause names the JSON pointer, what was found there and
  /// what is allowed.
  [[nodiscard]] static PlannerTable load(const std::filesystem::path& file);
  /// As load, from text; `origin` names it in messages.
  [[nodiscard]] static PlannerTable parse(std::string_view text, std::string_view origin = "planner table");

  [[nodiscard]] bool is_empty() const noexcept { return table_ == nullptr; }
  /// Canonical: equal tables give equal text. Empty for an empty table.
  [[nodiscard]] std::string to_json() const;
  /// Where it was measured: the device's name as the driver says it, and what the planner knows of it.
  [[nodiscard]] std::string device() const;
  [[nodiscard]] DeviceCaps caps() const noexcept;
  /// What was measured for kernels of this shape (algorithm and geometry are not looked at), or null; lives as long as
  /// a copy of the table.
  [[nodiscard]] const runtime::TuningEntry* find(const KernelSpec& shape) const noexcept;

 private:
  explicit PlannerTable(std::shared_ptr<const runtime::TuningTable> table) noexcept : table_(std::move(table)) {}
  std::shared_ptr<const runtime::TuningTable> table_;
};

struct PlanRequest {
  /// The kernels to choose from: equal but for algorithm and geometry, each algorithm's in the order of geometries();
  /// not empty. Not owned; read during the call only.
  std::span<const KernelSpec> kernels;
  std::int64_t tokens = 0;
  std::optional<Algorithm> algorithm = std::nullopt;  ///< wanted by the caller; one that `kernels` lacks is not chosen
  int max_blocks = 0;                                 ///< cap asked for by the caller; 0 = none
  bool dependent_launch = false;                      ///< the next kernel's blocks may be resident beside this one's
  const runtime::TuningEntry* measured = nullptr;     ///< followed where it names one of `kernels`; not owned
  bool registered = false;                            ///< the call has registered tensors: direct kernels may be chosen
};

struct Plan {
  int kernel = 0;           ///< index into PlanRequest::kernels
  unsigned blocks = 0;      ///< 0: nothing to launch (no tokens)
  std::string_view reason;  ///< static text
};

/// Whether one-shot is the better algorithm where no measurement says otherwise: it is while the bytes that all ranks
/// send together stay below a limit that falls with the world size.
[[nodiscard]] bool prefers_one_shot(const KernelSpec& shape, std::int64_t tokens) noexcept;

/// Never fails: a cap below one cluster is raised to one cluster (the reason says so).
[[nodiscard]] Plan plan(const PlanRequest& request, const DeviceCaps& caps) noexcept;

}  // namespace commfuse
