#include "runtime/toolchain_memo.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cache/file.hpp"
#include "cache/layer.hpp"
#include "cache/sha256.hpp"
#include "cache/strict_json.hpp"
#include "cache/writer.hpp"
#include "runtime/log.hpp"

namespace commfuse::runtime {
namespace {

using nlohmann::json;

/// Raised by any change of the grammar in the header.
constexpr std::uint64_t kSchema = 1;
constexpr std::size_t kMaxBytes = 64 * 1024;

constexpr std::size_t kSampleBytes = 4096;
constexpr int kSamples = 128;

std::string file_name(const std::string& fingerprint) { return "toolchains/" + fingerprint + ".json"; }

cache::DirectoryLayer layer_of(const std::filesystem::path& path, const cache::Directories& directories) {
  // The store that uses the same directories has warned of those that are refused.
  return {path, directories.trusted, nullptr};
}

/// The checksum of a record is no secret, so that its numbers may be anything.
int small_number(const json& value) {
  constexpr std::uint64_t kMost = 1'000'000;
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost)
    throw std::runtime_error("not a number of ours");
  return static_cast<int>(value.get<std::uint64_t>());
}

NvrtcFacts parse(const std::string& text) {
  json object = cache::parse_strict(text, "toolchain record", kMaxBytes);
  const std::string check = object.at("check").get<std::string>();
  object.erase("check");
  if (cache::unsigned_at(object, "schema") != kSchema || cache::sha256_hex(cache::canonical(object)) != check) {
    throw std::runtime_error("another schema, or damaged");
  }
  NvrtcFacts facts;
  for (const json& arch : object.at("archs")) facts.archs.push_back(small_number(arch));
  object.at("build").get_to(facts.build);
  facts.version = {small_number(object.at("version").at(0)), small_number(object.at("version").at(1))};
  return facts;
}

}  // namespace

std::string fingerprint(const std::string& nvrtc_path) {
  const cache::FileDescriptor file(::open(nvrtc_path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto size = static_cast<std::uint64_t>(status.st_size);
  cache::Sha256 hash;
  hash.update(fmt::format("{}\n", size));
  std::array<char, kSampleBytes> sample;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t last = size > kSampleBytes ? size - kSampleBytes : 0;
    const std::uint64_t offset = last * i / (kSamples - 1);
    const ssize_t got = ::pread(file.get(), sample.data(), sample.size(), static_cast<off_t>(offset));
    if (got < 0) return {};
    hash.update({sample.data(), static_cast<std::size_t>(got)});
  }
  return hash.hex();
}

std::optional<NvrtcFacts> ToolchainMemo::find(const std::string& fingerprint) const {
  if (fingerprint.empty()) return std::nullopt;
  std::vector<std::filesystem::path> paths = directories_.readonly;
  if (!directories_.writable.empty()) paths.insert(paths.begin(), directories_.writable);
  for (const std::filesystem::path& path : paths) {
    const cache::FileRead file = layer_of(path, directories_).read(file_name(fingerprint), kMaxBytes);
    if (file.error != 0) continue;
    try {
      return parse(file.bytes);
    } catch (const std::exception& error) {
      log(LogLevel::kDebug, fmt::format("{}: ignored: {}", (path / file_name(fingerprint)).string(), error.what()));
    }
  }
  return std::nullopt;
}

void ToolchainMemo::remember(const std::string& fingerprint, const NvrtcFacts& facts) const noexcept {
  if (fingerprint.empty() || directories_.writable.empty()) return;
  try {
    json object = {{"archs", facts.archs},
                   {"build", facts.build},
                   {"schema", kSchema},
                   {"version", {facts.version.major, facts.version.minor}}};
    object["check"] = cache::sha256_hex(cache::canonical(object));
    cache::create_cache_directory(directories_.writable);
    const auto opened = layer_of(directories_.writable, directories_).open();
    struct stat status;
    if (!opened.directory || ::fstat(opened.directory->get(), &status) != 0) return;
    // What the cache directory grants to others, this grants, except that only the owner writes.
    const unsigned mode = (status.st_mode & 0055u) | 0700u;
    if (::mkdirat(opened.directory->get(), "toolchains", mode) != 0 && errno != EEXIST) {
      throw std::system_error(errno, std::generic_category(), "create directory toolchains");
    }
    const cache::FileDescriptor folder(
        ::openat(opened.directory->get(), "toolchains", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder) throw std::system_error(errno, std::generic_category(), "open directory toolchains");
    cache::AtomicFile out(folder.get(), fingerprint + ".json", mode & 0644u);
    out.write(cache::canonical(object));
    out.commit();
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, std::string("which build NVRTC is was not stored: ") + error.what());
  }
}

}  // namespace commfuse::runtime
