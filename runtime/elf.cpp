#include "runtime/elf.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <vector>

#include "commfuse/error.hpp"

namespace commfuse::runtime {
namespace {

constexpr unsigned kMachineCuda = 190;

// Attributes of the sections .nv.info and .nv.info.KERNEL: a byte for the form of the value, a byte for its meaning,
// and 16 bits that are the value, or the size of the bytes that follow.
constexpr unsigned kFormBytes = 4;
constexpr unsigned kFrameSize = 0x11;
constexpr unsigned kMinStackSize = 0x12;
constexpr unsigned kParamBytes = 0x19;
constexpr unsigned kRegisterCount = 0x2f;

[[noreturn]] void refuse(const std::string& cause) {
  throw Error(Code::kInvalidInput, "cannot use a compiled kernel", cause, "It is damaged: compile it again");
}

class Cubin {
 public:
  explicit Cubin(std::string_view bytes) : bytes_(bytes) {
    if (bytes.empty()) refuse("the compiler's output is empty");
    header_ = read<Elf64_Ehdr>(0, "the ELF header");
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 || header_.e_ident[EI_CLASS] != ELFCLASS64) {
      refuse("it is not a 64-bit ELF file");
    }
    if (header_.e_machine != kMachineCuda) refuse(fmt::format("it is ELF for machine {}, not CUDA", header_.e_machine));
    if (header_.e_shentsize != sizeof(Elf64_Shdr)) refuse("its section table has another form");
    for (unsigned i = 0; i < header_.e_shnum; ++i) {
      sections_.push_back(read<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr), "the section table"));
    }
    if (header_.e_shstrndx >= sections_.size()) refuse("it has no section names");
  }

  /// The compute capability moved to the second byte when the ABI version became 8 (CUDA 13).
  [[nodiscard]] int arch() const {
    const unsigned shift = header_.e_ident[EI_ABIVERSION] >= 8 ? 8 : 0;
    return static_cast<int>((header_.e_flags >> shift) & 0xff);
  }

  [[nodiscard]] const Elf64_Shdr* section(std::string_view name) const {
    for (const Elf64_Shdr& section : sections_) {
      if (text_at(sections_[header_.e_shstrndx], section.sh_name) == name) return &section;
    }
    return nullptr;
  }

  [[nodiscard]] std::string_view content(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return {};
    if (section.sh_offset > bytes_.size() || section.sh_size > bytes_.size() - section.sh_offset) {
      refuse("a section leaves the file");
    }
    return bytes_.substr(section.sh_offset, section.sh_size);
  }

  /// The number of the symbol `name`, by which .nv.info names kernels.
  [[nodiscard]] std::optional<std::uint32_t> symbol_index(std::string_view name) const {
    const Elf64_Shdr* symbols = section(".symtab");
    if (symbols == nullptr || symbols->sh_link >= sections_.size()) return std::nullopt;
    const std::string_view table = content(*symbols);
    for (std::size_t i = 0; (i + 1) * sizeof(Elf64_Sym) <= table.size(); ++i) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, table.data() + i * sizeof symbol, sizeof symbol);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && text_at(sections_[symbols->sh_link], symbol.st_name) == name) {
        return static_cast<std::uint32_t>(i);
      }
    }
    return std::nullopt;
  }

 private:
  template <typename T>
  [[nodiscard]] T read(std::uint64_t offset, const char* what) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) refuse(fmt::format("{} leaves the file", what));
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  [[nodiscard]] std::string_view text_at(const Elf64_Shdr& strings, std::uint64_t offset) const {
    const std::string_view table = content(strings);
    if (offset >= table.size()) return {};
    const std::string_view rest = table.substr(offset);
    return rest.substr(0, rest.find('\0'));
  }

  std::string_view bytes_;
  Elf64_Ehdr header_;
  std::vector<Elf64_Shdr> sections_;
};

/// Calls visit(meaning, value, bytes) for every attribute.
template <typename Visit>
void for_each_attribute(std::string_view section, Visit visit) {
  while (section.size() >= 4) {
    const auto form = static_cast<unsigned char>(section[0]);
    const auto meaning = static_cast<unsigned char>(section[1]);
    std::uint16_t value = 0;
    std::memcpy(&value, section.data() + 2, sizeof value);
    section.remove_prefix(4);
    std::string_view payload;
    if (form == kFormBytes) {
      if (value > section.size()) refuse("an attribute leaves its section");
      payload = section.substr(0, value);
      section.remove_prefix(value);
    }
    visit(meaning, value, payload);
  }
}

}  // namespace

CubinFacts read_cubin(std::string_view bytes, std::string_view kernel) {
  const Cubin cubin(bytes);
  const Elf64_Shdr* code = cubin.section(fmt::format(".text.{}", kernel));
  if (code == nullptr) refuse(fmt::format("it holds no kernel '{}'", kernel));
  CubinFacts facts;
  facts.arch = cubin.arch();
  facts.code_bytes = cubin.content(*code).size();
  if (const Elf64_Shdr* shared = cubin.section(fmt::format(".nv.shared.{}", kernel))) {
    facts.shared_bytes = static_cast<std::uint32_t>(shared->sh_size);
  }
  const auto index = cubin.symbol_index(kernel);
  const Elf64_Shdr* info = cubin.section(".nv.info");
  if (info != nullptr && index) {
    for_each_attribute(cubin.content(*info), [&](unsigned meaning, unsigned, std::string_view payload) {
      std::uint32_t pair[2];
      if (payload.size() != sizeof pair) return;
      std::memcpy(pair, payload.data(), sizeof pair);
      if (pair[0] != *index) return;
      if (meaning == kRegisterCount) facts.registers = static_cast<int>(pair[1]);
      if (meaning == kFrameSize || meaning == kMinStackSize) facts.stack_bytes = std::max(facts.stack_bytes, pair[1]);
    });
  }
  if (const Elf64_Shdr* own = cubin.section(fmt::format(".nv.info.{}", kernel))) {
    for_each_attribute(cubin.content(*own), [&](unsigned meaning, unsigned value, std::string_view) {
      if (meaning == kParamBytes) facts.param_bytes = value;
    });
  }
  return facts;
}

}  // namespace commfuse::runtime
