// Compiled kernels on disk.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/directory.hpp"

namespace commfuse::cache {

class Locks;
struct GcOptions;
struct GcReport;
struct Usage;

/// Why a kernel was not found. All but kAbsent and kUncached mean that something lies there which is not the kernel;
/// the next publish replaces it.
enum class Miss : int {
  kAbsent,        ///< no layer has an entry
  kUncached,      ///< there is no layer to look in
  kUnreadable,    ///< a file could not be opened or read
  kMalformed,     ///< the metadata is not an entry of this format
  kForeign,       ///< the metadata is of another signature
  kCubinMissing,  ///< metadata without cubin
  kCubinSize,     ///< the cubin is shorter or longer than recorded
  kCubinHash,     ///< the cubin's bytes are not those recorded
  kNotCubin,      ///< the cubin is no ELF file for CUDA, or its tables exceed the file
  kWrongArch,     ///< the cubin is for another architecture than its signature says
};
inline constexpr int kMissCount = 10;
[[nodiscard]] std::string_view to_string(Miss) noexcept;  ///< "absent", "cubin_hash" ...

/// A verified entry. `cubin` is in memory: eviction or replacement of the files does not touch it.
struct Hit {
  std::string cubin;
  std::string metadata_json;     ///< the whole .json file of the entry (format: entry.hpp)
  std::filesystem::path origin;  ///< the layer it came from
  std::string cubin_sha256;      ///< 64 hexadecimal digits, checked; not set by those who put an entry together
};

struct Lookup {
  std::optional<Hit> hit;
  Miss reason = Miss::kAbsent;  ///< if there is no hit
  std::string detail;           ///< one line: which file, what is wrong; empty for kAbsent

  [[nodiscard]] explicit operator bool() const noexcept { return hit.has_value(); }
};

/// What became of a publish. Only kStored and kKept leave an entry that a later find returns.
struct Publication {
  enum class Result : int {
    kStored,    ///< written
    kKept,      ///< an intact entry was there already and stays; `detail` says so if its cubin has other bytes
    kUncached,  ///< there is no writable directory
    kInvalid,   ///< key, signature, cubin or facts break the format: a fault of the caller
    kFailed,    ///< I/O: full disk, read-only, no permission ...
  };
  Result result = Result::kFailed;
  std::string detail;  ///< for all but kStored: one line with the path and the cause

  [[nodiscard]] bool stored() const noexcept { return result == Result::kStored || result == Result::kKept; }
};

/// One entry as `list` sees it: checked for form, but its cubin neither read nor hashed.
struct EntryInfo {
  std::string key;
  std::filesystem::path layer;
  bool writable = false;  ///< lies in the writable directory
  std::string problem;    ///< empty for a well-formed entry; else what is wrong, and fields may be unset
  std::string kernel;     ///< readable name
  std::string arch;
  std::string metadata_json;  ///< the whole .json file
  std::uint64_t cubin_bytes = 0;
  std::uint64_t disk_bytes = 0;   ///< of both files
  std::int64_t created_unix = 0;  ///< seconds
  std::int64_t last_used_unix =
      0;  ///< seconds; by the JSON's modification time, which a hit in the writable layer renews
};

struct StoreOptions {
  Directories directories;
  /// Receives each warning once per store: that nothing can be stored and which variable to set, a layer that is
  /// refused.
  std::function<void(std::string_view message)> warn;
  /// Bound on the writable directory; publishing beyond it evicts what was used least recently (see gc.hpp). 0: none;
  /// not set: Directories::max_bytes.
  std::optional<std::uint64_t> max_bytes = std::nullopt;
};

/// One writable directory over any number of read-only ones. Looks in the writable one first, then down the layers in
/// order; copies nothing between them. All functions may be called from any thread. Nothing is created until the first
/// publish, and finding writes nothing but the time of use.
class Store {
 public:
  explicit Store(StoreOptions options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// The entry of `key`, verified: its metadata parses strictly, carries `signature_json` byte for byte, and the cubin
  /// has the recorded size and SHA-256 and is an ELF file for the signature's architecture. Trouble of any kind is a
  /// miss; nothing but std::bad_alloc is thrown.
  [[nodiscard]] Lookup find(std::string_view key, std::string_view signature_json) const;

  /// As find, but neither counted nor a use of the entry: for those who look again, or only want to know.
  [[nodiscard]] Lookup peek(std::string_view key, std::string_view signature_json) const;

  /// The first intact entry of `key`, judged by itself: for tools, which have a key and no signature to ask for.
  [[nodiscard]] Lookup read(std::string_view key) const;

  /// Stores an entry, all or nothing, surviving a crash at any step. `signature_json` is Signature::to_json() and `key`
  /// its hash. `facts_json` is a JSON object of at most 4 MiB with what is worth knowing and not keyed; entry.hpp names
  /// the members. Replaces a damaged entry, keeps an intact one. Trouble is an answer, never an exception, and warned
  /// of once: the caller goes on with the cubin it has.
  Publication publish(std::string_view key, std::string_view signature_json, std::string_view cubin,
                      std::string_view facts_json) const;

  /// Stores an entry that came from elsewhere as it is, metadata included, if it is intact. As publish otherwise.
  Publication import_entry(std::string_view key, const Hit& entry) const;

  /// Removes from the writable directory what gc.hpp says. Publishing beyond the bound does so by itself.
  GcReport collect(const GcOptions& options) const;

  /// All entries of all layers, well-formed or not, sorted by key, then by layer.
  [[nodiscard]] std::vector<EntryInfo> list() const;

  /// The layers that are in use, the writable one first if there is one.
  [[nodiscard]] const std::vector<std::filesystem::path>& layers() const noexcept;
  [[nodiscard]] const Directories& directories() const noexcept;
  [[nodiscard]] const Locks& locks() const noexcept;

  /// Adds to the numbers that the writable directory keeps, if it is there (usage.hpp), and what they have come to.
  /// Neither creates a directory, nor throws but for memory.
  void record(const Usage& usage) const;
  [[nodiscard]] Usage usage() const;

  /// What this object has been asked so far.
  struct Counters {
    std::uint64_t hits = 0;
    std::array<std::uint64_t, kMissCount> misses{};  ///< by Miss
    std::uint64_t stored = 0, kept = 0, store_failed = 0;
  };
  [[nodiscard]] Counters counters() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace commfuse::cache
