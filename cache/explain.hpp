// Why a kernel was not found: what differs from the nearest one that is there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/store.hpp"

namespace commfuse::cache {

/// What differs between two signatures, one line each, the most telling first: "nvrtc 13.0.88 CL-1 -> 13.1.12 CL-2",
/// "header device/ptx.cuh changed", "option --minimal removed", "spec /world_size 8 -> 4". Empty if they are equal.
/// Text that is not a signature is one line that says so.
[[nodiscard]] std::vector<std::string> differences(std::string_view old_signature_json,
                                                   std::string_view new_signature_json);

struct Explanation {
  std::string nearest_key;           ///< empty if no entry has this kernel's name
  std::filesystem::path layer;       ///< where that entry is
  std::vector<std::string> changes;  ///< from it to what was asked for
  /// One line for a log or a listing: "nearest entry 3f2a…: nvrtc 13.0.88 CL-1 -> 13.1.12 CL-2", or that there is none.
  std::string summary;
};

/// Compares with the entries of the same kernel name and picks the one with the fewest differences. `entries` is
/// Store::list(), so that a report on many kernels reads the directory once.
[[nodiscard]] Explanation explain(const std::vector<EntryInfo>& entries, std::string_view signature_json);

}  // namespace commfuse::cache
