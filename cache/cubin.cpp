#include "cache/cubin.hpp"

#include <elf.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

namespace commfuse::cache {
namespace {

constexpr unsigned kMachineCuda = 190;
constexpr unsigned char kOsAbiCuda12 = 0x33;  // ABI version 7: architecture in bits 0 to 7 of the flags
constexpr unsigned char kOsAbiCuda13 = 0x41;  // ABI version 8: architecture in bits 8 to 15

bool within(std::uint64_t offset, std::uint64_t size, std::uint64_t limit) {
  return offset <= limit && size <= limit - offset;
}

std::optional<unsigned> arch_of(const Elf64_Ehdr& header) {
  if (header.e_ident[EI_OSABI] == kOsAbiCuda12) return header.e_flags & 0xffu;
  if (header.e_ident[EI_OSABI] == kOsAbiCuda13) return (header.e_flags >> 8) & 0xffu;
  return std::nullopt;
}

}  // namespace

CubinCheck check_cubin(std::string_view cubin, std::string_view arch) {
  const auto bad = [](std::string why) { return CubinCheck{CubinCheck::Result::kNotCubin, std::move(why)}; };
  Elf64_Ehdr header;
  if (cubin.size() < sizeof header) return bad("it has " + std::to_string(cubin.size()) + " bytes, too few for ELF");
  std::memcpy(&header, cubin.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return bad("it is not an ELF file");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != kMachineCuda) {
    return bad("it is an ELF file, but not for CUDA");
  }
  if (header.e_shnum == 0 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      !within(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr), cubin.size())) {
    return bad("its section table exceeds the file");
  }
  if (header.e_phnum != 0 &&
      (header.e_phentsize != sizeof(Elf64_Phdr) ||
       !within(header.e_phoff, std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr), cubin.size()))) {
    return bad("its program header table exceeds the file");
  }
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, cubin.data() + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
        !within(section.sh_offset, section.sh_size, cubin.size())) {
      return bad("its section " + std::to_string(i) + " exceeds the file");
    }
  }

  unsigned wanted = 0;
  if (arch.starts_with("sm_")) std::from_chars(arch.data() + 3, arch.data() + arch.size(), wanted);
  const std::optional<unsigned> found = arch_of(header);
  if (found && *found != wanted) {
    return {CubinCheck::Result::kWrongArch, "it is for sm_" + std::to_string(*found) + ", not " + std::string(arch)};
  }
  return {};
}

}  // namespace commfuse::cache
