#include "cache/ustar.hpp"

#include <algorithm>
#include <cstring>

namespace commfuse::cache {
namespace {

// Octal digits that fill a field but for its closing NUL.
void put_octal(char* field, std::size_t width, std::uint64_t value) {
  field[width - 1] = '\0';
  for (std::size_t i = width - 1; i-- > 0; value /= 8) field[i] = static_cast<char>('0' + value % 8);
}

}  // namespace

std::array<char, kTarBlock> tar_header(std::string_view name, std::uint64_t size) {
  std::array<char, kTarBlock> block{};
  char* const b = block.data();
  std::memcpy(b, name.data(), std::min<std::size_t>(name.size(), 99));
  put_octal(b + 100, 8, 0644);
  put_octal(b + 108, 8, 0);  // owner
  put_octal(b + 116, 8, 0);  // group
  put_octal(b + 124, 12, size);
  put_octal(b + 136, 12, 0);  // time
  b[156] = '0';               // a regular file
  std::memcpy(b + 257,
              "ustar\0"
              "00",
              8);
  put_octal(b + 329, 8, 0);  // device numbers
  put_octal(b + 337, 8, 0);
  std::memset(b + 148, ' ', 8);
  std::uint64_t sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  put_octal(b + 148, 7, sum);
  return block;
}

bool read_tar_header(const std::array<char, kTarBlock>& block, std::string& name, std::uint64_t& size) {
  const char* const end = std::find(block.data(), block.data() + 100, '\0');
  name.assign(block.data(), end);
  size = 0;
  for (std::size_t i = 124; i < 135; ++i) {
    if (block[i] < '0' || block[i] > '7') return false;
    size = size * 8 + static_cast<std::uint64_t>(block[i] - '0');
  }
  // Only what was written here is read: every other field must be as it would be.
  return !name.empty() && name.size() < 100 && block == tar_header(name, size);
}

}  // namespace commfuse::cache
