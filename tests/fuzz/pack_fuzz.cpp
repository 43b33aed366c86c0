// Any bytes as a pack: as the whole file, and as each of its parts.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cache/lookup.hpp"
#include "cache/pack.hpp"
#include "cache/pack_format.hpp"
#include "cache/sha256.hpp"
#include "cache/ustar.hpp"
#include "fuzz_support.hpp"

namespace {

using namespace commfuse;
using namespace commfuse::cache;
using fuzz::require;

void read_parts(std::string_view text) {
  fuzz::expect_value_or_invalid_input([&] { require(pack_manifest(parse_pack_manifest(text, "fuzz")) == text); });
  fuzz::expect_value_or_invalid_input([&] { require(pack_signature(parse_pack_signature(text, "fuzz")) == text); });
  std::array<char, kTarBlock> block{};
  text.copy(block.data(), block.size());
  std::string name;
  std::uint64_t size = 0;
  if (read_tar_header(block, name, size)) require(tar_header(name, size) == block);
}

/// A file in memory that holds these bytes and nothing else.
const std::string& file_with(std::string_view bytes) {
  static const int file = ::memfd_create("pack", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  require(::ftruncate(file, 0) == 0);
  require(::pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return path;
}

void read_file_as_pack(std::string_view bytes) {
  const std::string& path = file_with(bytes);
  fuzz::expect_value_or_invalid_input([&] {
    const std::unique_ptr<Pack> pack = Pack::open(path);
    require(pack->list().size() == 2 * pack->entries().size());
    for (const PackEntry& entry : pack->entries()) {
      const FileRead cubin = pack->read(entry.key.substr(0, 2) + "/" + entry.key + ".cubin", std::size_t{1} << 20);
      require(cubin.error != 0 || sha256_hex(cubin.bytes) == entry.cubin_sha256);
      const Lookup found = verify_entry(*pack, entry.key);
      require(found ? found.hit->cubin == cubin.bytes : !found.detail.empty());
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_parts(bytes);
  read_file_as_pack(bytes);
  return 0;
}
