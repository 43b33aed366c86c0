// What the tests of the cache share: a private directory, a signature, bytes that pass for a cubin.
#pragma once

#include <elf.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/entry.hpp"
#include "cache/signature.hpp"
#include "cache/store.hpp"

namespace commfuse::cache::testing {

namespace fs = std::filesystem;

/// A new empty directory of mode 0700, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    // In memory where there is such a place: a sync costs nothing there, and there are thousands.
    const fs::path base = ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
    std::string name = (base / "commfuse-cache-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline std::string read_all(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + file.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_all(const fs::path& file, const std::string& bytes) {
  fs::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("cannot write " + file.string());
}

inline Signature make_signature(const std::string& kernel = "all_reduce_example", const std::string& arch = "sm_90a") {
  Signature s;
  s.kernel = kernel;
  s.spec_json = R"({"arch":")" + arch + R"(","hidden_size":7168,"op":"all_reduce","world_size":8})";
  s.source_sha256 = std::string(64, '1');
  s.headers_sha256 = {{"device/ptx.cuh", std::string(64, '2')}, {"all_reduce.cuh", std::string(64, '3')}};
  s.options = {"--gpu-architecture=" + arch, "--minimal"};
  s.nvrtc_build = "13.0.88 CL-36424714";
  s.arch = arch;
  return s;
}

/// An ELF file for CUDA laid out as NVRTC does it: header, content, section table, program headers.
inline std::string make_cubin(unsigned sm = 90, std::size_t content = 1000, char fill = 'k') {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_ident[EI_OSABI] = 0x41;
  header.e_ident[EI_ABIVERSION] = 8;
  header.e_type = ET_EXEC;
  header.e_machine = 190;
  header.e_version = EV_CURRENT;
  header.e_flags = 0x06000004u | (sm << 8);
  header.e_ehsize = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  header.e_shoff = sizeof header + content;
  header.e_phoff = header.e_shoff + 2 * sizeof(Elf64_Shdr);
  Elf64_Shdr sections[2]{};
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_offset = sizeof header;
  sections[1].sh_size = content;
  Elf64_Phdr program{};
  program.p_type = PT_LOAD;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(content, fill);
  bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
  bytes.append(reinterpret_cast<const char*>(&program), sizeof program);
  return bytes;
}

inline constexpr auto kFacts = R"({"log":"","phases_ms":{"front_end":11.5},"resources":{"registers":32}})";

/// Options of a store over one directory that collects warnings.
inline StoreOptions options_for(const fs::path& writable, std::vector<std::string>* warnings = nullptr) {
  StoreOptions options;
  options.directories.writable = writable;
  if (warnings != nullptr) {
    options.warn = [warnings](std::string_view message) { warnings->emplace_back(message); };
  }
  return options;
}

/// One kernel, ready to be published and looked up.
struct Sample {
  Signature signature;
  std::string json, key, cubin;

  explicit Sample(const std::string& kernel = "all_reduce_example", std::size_t content = 1000)
      : signature(make_signature(kernel)),
        json(signature.to_json()),
        key(signature.key()),
        cubin(make_cubin(90, content)) {}

  [[nodiscard]] fs::path json_in(const fs::path& directory) const { return directory / metadata_name(key); }
  [[nodiscard]] fs::path cubin_in(const fs::path& directory) const { return directory / cubin_name(key); }
  [[nodiscard]] Publication publish(const Store& store) const { return store.publish(key, json, cubin, kFacts); }
  [[nodiscard]] Lookup find(const Store& store) const { return store.find(key, json); }
};

}  // namespace commfuse::cache::testing
