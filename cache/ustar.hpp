// The tar headers of a pack.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace commfuse::cache {

// A pack is a POSIX ustar archive of a few kinds of plain files, written and read here rather than by a library: what a
// general reader accepts (links, sparse files, path tricks, compression) is what makes unpacking dangerous, and a
// general writer's bytes change with its version.

inline constexpr std::size_t kTarBlock = 512;

/// The header of a regular file: mode 0644, owner and time 0, so that equal content is equal bytes. `name` has at most
/// 99 characters, `size` is below 8 GiB.
[[nodiscard]] std::array<char, kTarBlock> tar_header(std::string_view name, std::uint64_t size);

/// Bytes that a file of this size takes after its header.
[[nodiscard]] constexpr std::uint64_t tar_padded(std::uint64_t size) {
  return (size + kTarBlock - 1) / kTarBlock * kTarBlock;
}

/// Name and size of a header that tar_header could have written; false for every other block.
[[nodiscard]] bool read_tar_header(const std::array<char, kTarBlock>& block, std::string& name, std::uint64_t& size);

}  // namespace commfuse::cache
