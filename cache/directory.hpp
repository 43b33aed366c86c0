// Where the cache is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace commfuse::cache {

/// What the search below asks of the surroundings, so that tests need not change the process.
struct Environment {
  std::function<std::optional<std::string>(const std::string& name)> variable;
  std::function<std::optional<std::filesystem::path>()> passwd_home;  ///< of the effective user

  [[nodiscard]] static Environment of_process();
};

/// The directories of one cache, and what was wrong on the way to them.
struct Directories {
  std::filesystem::path writable;               ///< absolute; empty: nothing is stored
  std::string chosen_by;                        ///< what decided: "COMMFUSE_CACHE_DIR", "HOME", "the caller" ...
  std::vector<std::filesystem::path> readonly;  ///< layers below it, first one first; directories or packs
  std::vector<std::filesystem::path> trusted;   ///< allowed by name in spite of owner or mode (COMMFUSE_CACHE_TRUST)
  std::uint64_t max_bytes = std::uint64_t{2} << 30;  ///< bound on `writable` (COMMFUSE_CACHE_MAX_BYTES); 0: none
  std::filesystem::path runtime;      ///< XDG_RUNTIME_DIR, a place for locks; empty if not set or relative
  std::vector<std::string> warnings;  ///< one line each, naming the variable to set
};

/// The writable directory: `chosen` (made absolute) if it is not empty, else COMMFUSE_CACHE_DIR, else
/// $XDG_CACHE_HOME/commfuse, else $HOME/.cache/commfuse, else the home of the passwd entry. A relative
/// COMMFUSE_CACHE_DIR disables the cache with a warning and a relative XDG_CACHE_HOME or HOME is passed over, because a
/// directory that depends on where a process was started is how planted kernels get loaded. COMMFUSE_CACHE_READONLY and
/// COMMFUSE_CACHE_TRUST are lists with ':' between the paths; COMMFUSE_CACHE_MAX_BYTES is a number of bytes, or one
/// with a unit (KiB, MiB, GiB, TiB, or just K, M, G, T, all binary). Reads the environment only; touches no file.
[[nodiscard]] Directories find_directories(const Environment& environment, const std::filesystem::path& chosen = {});

}  // namespace commfuse::cache
