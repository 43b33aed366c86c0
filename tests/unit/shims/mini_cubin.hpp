// A cubin with nothing but the tables that commfuse reads: what NVRTC's stand-in returns.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace commfuse::test {

struct MiniCubin {
  std::string kernel = "kernel";
  int arch = 90;
  std::uint32_t registers = 40;
  std::uint32_t stack_bytes = 0;
  std::uint16_t param_bytes = 0;
  std::uint64_t code_bytes = 256;
  std::uint64_t shared_bytes = 1024;
  bool cuda13 = true;  ///< ABI version 8, else 7

  [[nodiscard]] std::string bytes() const {
    struct Section {
      std::string name;
      std::uint32_t type = SHT_PROGBITS;
      std::string content;
      std::uint32_t link = 0;
      std::uint64_t nobits = 0;
    };
    const auto number = [](std::uint64_t value, int size) {
      std::string text(static_cast<std::size_t>(size), '\0');
      std::memcpy(text.data(), &value, text.size());
      return text;
    };
    const auto pair = [&](char meaning, std::uint32_t value) {
      return std::string{4, meaning, 8, 0} + number(1, 4) + number(value, 4);  // of symbol 1
    };
    Elf64_Sym symbol{};
    symbol.st_name = 1;
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    std::string symbols(2 * sizeof symbol, '\0');
    std::memcpy(symbols.data() + sizeof symbol, &symbol, sizeof symbol);

    std::vector<Section> sections = {
        {"", SHT_NULL, "", 0, 0},
        {".shstrtab", SHT_STRTAB, "", 0, 0},
        {".strtab", SHT_STRTAB, std::string(1, '\0') + kernel + '\0', 0, 0},
        {".symtab", SHT_SYMTAB, symbols, 2, 0},
        {".nv.info", 0x70000000, pair(0x2f, registers) + pair(0x11, stack_bytes), 3, 0},
        {".nv.info." + kernel, 0x70000000, std::string{3, 0x19} + number(param_bytes, 2), 3, 0},
        {".text." + kernel, SHT_PROGBITS, std::string(code_bytes, '\x11'), 3, 0},
        {".nv.shared." + kernel, SHT_NOBITS, "", 0, shared_bytes},
    };
    std::vector<std::uint32_t> names;
    std::string& name_table = sections[1].content;
    for (const Section& section : sections) {
      names.push_back(static_cast<std::uint32_t>(name_table.size()));
      name_table += section.name + '\0';
    }

    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_ident[EI_OSABI] = cuda13 ? 0x41 : 0x33;
    header.e_ident[EI_ABIVERSION] = cuda13 ? 8 : 7;
    header.e_type = ET_EXEC;
    header.e_machine = 190;
    header.e_version = EV_CURRENT;
    header.e_flags = static_cast<std::uint32_t>(cuda13 ? 0x06000004 | arch << 8 : arch << 16 | 0x0500 | arch);
    header.e_ehsize = sizeof header;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<std::uint16_t>(sections.size());
    header.e_shstrndx = 1;

    std::string body(sizeof header, '\0');
    std::vector<Elf64_Shdr> table;
    for (std::size_t i = 0; i < sections.size(); ++i) {
      Elf64_Shdr entry{};
      entry.sh_name = names[i];
      entry.sh_type = sections[i].type;
      entry.sh_offset = i == 0 ? 0 : body.size();
      entry.sh_size = sections[i].type == SHT_NOBITS ? sections[i].nobits : sections[i].content.size();
      entry.sh_link = sections[i].link;
      body += sections[i].content;
      table.push_back(entry);
    }
    header.e_shoff = body.size();
    std::memcpy(body.data(), &header, sizeof header);
    return body.append(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(Elf64_Shdr));
  }
};

}  // namespace commfuse::test
