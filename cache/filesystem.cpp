#include "cache/filesystem.hpp"

#include <sys/vfs.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace commfuse::cache {
namespace {

struct Known {
  std::uint32_t magic;
  const char* name;
  bool local;
};

// Numbers from the kernel's public interface (statfs(2)) and, for the parallel ones, from their own headers.
constexpr std::array<Known, 23> kKnown = {{
    {0xef53, "ext4", true},         {0x58465342, "xfs", true},      {0x9123683e, "btrfs", true},
    {0x01021994, "tmpfs", true},    {0x794c7630, "overlay", true},  {0x2fc12fc1, "zfs", true},
    {0xf2f52010, "f2fs", true},     {0x73717368, "squashfs", true}, {0x858458f6, "ramfs", true},
    {0x52654973, "reiserfs", true}, {0x3153464a, "jfs", true},      {0xca451a4e, "bcachefs", true},
    {0xf15f, "ecryptfs", true},     {0x6969, "nfs", false},         {0x517b, "smb", false},
    {0xff534d42, "cifs", false},    {0xfe534d42, "smb2", false},    {0x0bd00bd0, "lustre", false},
    {0x47504653, "gpfs", false},    {0x00c36400, "ceph", false},    {0x65735546, "fuse", false},
    {0x5346414f, "afs", false},     {0x01021997, "9p", false},
}};

}  // namespace

FilesystemKind filesystem_of(const std::filesystem::path& path) {
  struct statfs status {};
  std::filesystem::path at = path;
  while (::statfs(at.c_str(), &status) != 0) {
    if ((errno != ENOENT && errno != ENOTDIR) || !at.has_relative_path()) return {"unknown", false};
    at = at.parent_path();
  }
  const auto magic = static_cast<std::uint32_t>(status.f_type);
  for (const Known& known : kKnown) {
    if (known.magic == magic) return {known.name, known.local};
  }
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", magic);
  // Perhaps a network's: then locks there would hang, or hold on one machine only.
  return {text, false};
}

}  // namespace commfuse::cache
