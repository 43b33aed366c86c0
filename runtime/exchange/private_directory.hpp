// A folder that only this user can enter, and the names that the groups of the user's jobs hold in it.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/exchange/socket.hpp"

namespace commfuse::runtime {

/// An open folder of mode 0700 that belongs to this user, made if missing. What is checked is what is used afterwards:
/// files are reached through the open descriptor, so exchanging the folder for another, or for a link, gains nothing.
class PrivateDirectory {
 public:
  explicit PrivateDirectory(std::filesystem::path path);
  [[nodiscard]] int descriptor() const noexcept { return directory_.get(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// A path of bounded length that leads into this folder whatever its own length (socket addresses end at 107 bytes).
  [[nodiscard]] std::string short_path(const std::string& name) const;

 private:
  std::filesystem::path path_;
  Descriptor directory_;
};

/// The exclusive right to a name: a lock on NAME.lock. Whoever holds it may remove NAME.sock, which can only be left
/// over from a process that died. Both files are removed on release.
class HeldName {
 public:
  /// Waits until the deadline for another process that holds the name, then throws Error(kBusy).
  HeldName(const PrivateDirectory& directory, std::string name, Deadline deadline);
  HeldName(const HeldName&) = delete;
  HeldName& operator=(const HeldName&) = delete;
  ~HeldName();

 private:
  const PrivateDirectory& directory_;
  std::string name_;
  Descriptor lock_;
};

/// Removes what dead processes left in the folder.
void sweep_leftovers(const PrivateDirectory& directory);

}  // namespace commfuse::runtime
