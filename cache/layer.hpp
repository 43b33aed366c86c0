// One place that entries are read from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file.hpp"

namespace commfuse::cache {

/// A file of a layer as a listing sees it.
struct ListedFile {
  std::string name;  ///< relative to the layer: "ab/<key>.json"
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  ///< seconds since 1970; for metadata in the writable directory: last use
};

/// Where entries come from: a directory, or a pack. Reading never writes.
class Layer {
 public:
  explicit Layer(std::filesystem::path path) : path_(std::move(path)) {}
  virtual ~Layer() = default;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] virtual FileRead read(const std::string& name, std::size_t max_bytes) const = 0;
  /// Files that have the form of an entry's, in no order; nothing of what cannot be read.
  [[nodiscard]] virtual std::vector<ListedFile> list() const = 0;

 private:
  std::filesystem::path path_;
};

/// A directory. It is opened when it is first needed, checked for trust on the open descriptor, and used through that
/// descriptor, so that nobody can exchange it after the check. One that is removed and made again is opened and checked
/// again.
class DirectoryLayer : public Layer {
 public:
  using Warn = std::function<void(const std::string& message)>;

  /// `warn` hears once if the directory is refused.
  DirectoryLayer(std::filesystem::path path, std::vector<std::filesystem::path> trusted, Warn warn);

  [[nodiscard]] FileRead read(const std::string& name, std::size_t max_bytes) const override;
  [[nodiscard]] std::vector<ListedFile> list() const override { return scan(false); }

  /// The open directory; or null with errno, and why it is refused if it is not trusted.
  struct Opened {
    std::shared_ptr<const FileDescriptor> directory;
    int error = 0;
    std::string refused;
  };
  [[nodiscard]] Opened open() const;

  /// As list, with the temporaries of publishes under way or cut short (AtomicFile::is_temporary).
  [[nodiscard]] std::vector<ListedFile> list_with_temporaries() const { return scan(true); }

  /// Removes a file. True also if it was gone already.
  bool remove(const std::string& name) const;
  /// Modification time in seconds since 1970, or nothing.
  [[nodiscard]] std::optional<std::int64_t> modified(const std::string& name) const;

  /// Marks the entry as used now, unless that was done within the last minute. Failure does not matter.
  void touch(const std::string& name) const;

 private:
  [[nodiscard]] std::vector<ListedFile> scan(bool temporaries) const;

  std::vector<std::filesystem::path> trusted_;
  Warn warn_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const FileDescriptor> directory_;  // the last one that was trusted
  mutable std::string refused_;                              // what was warned of last
};

/// The two digits that name a subdirectory, and "<key>.json" or "<key>.cubin" within it.
[[nodiscard]] bool is_entry_directory(std::string_view name) noexcept;
[[nodiscard]] bool is_entry_file(std::string_view name) noexcept;

}  // namespace commfuse::cache
