// The list of kernels that something needs, and whether a cache has them all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cache/obtain.hpp"
#include "cache/store.hpp"

namespace commfuse::cache {

// A manifest is a JSON object with exactly these members; white space and the order of members are free:
//
//   kernels   array of {"key": 64 hexadecimal digits, "signature": object}, each key once
//   name      string, for people: the deployment's
//   schema    integer, kManifestSchema
//
// It needs no compiler to be checked, because it carries the signatures that the compiler's build went into.
inline constexpr int kManifestSchema = 1;

struct Manifest {
  std::string name;
  std::vector<Wanted> kernels;

  /// Indented for people. Throws Error(kInvalidArgument) for a kernel whose key is not its signature's.
  [[nodiscard]] std::string to_json() const;
  /// Reads untrusted text of at most 64 MiB. Throws Error(kInvalidInput).
  [[nodiscard]] static Manifest parse(std::string_view json, std::string_view origin = "manifest");
  /// Reads a file. Throws as parse, and Error(kNotFound, kIo).
  [[nodiscard]] static Manifest load(const std::filesystem::path& file);
  /// Writes a file, all or nothing. Throws Error(kIo).
  void save(const std::filesystem::path& file) const;
};

/// One kernel of a manifest that a cache does not hold intact.
struct MissingKernel {
  Wanted kernel;
  std::string name;  ///< readable
  Miss reason = Miss::kAbsent;
  std::string detail;       ///< what is wrong with the entry that is there; empty for kAbsent
  std::string explanation;  ///< for kAbsent: what changed since the nearest entry (explain.hpp)
};

struct Verification {
  std::size_t total = 0;
  std::vector<MissingKernel> missing;  ///< in the manifest's order

  [[nodiscard]] bool complete() const noexcept { return missing.empty(); }
};

/// Reads and checks every entry that the manifest names, as Store::find would, without counting as use.
[[nodiscard]] Verification verify(const Store& store, const Manifest& manifest);

}  // namespace commfuse::cache
