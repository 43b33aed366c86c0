#include "cache/manifest.hpp"

#include <fcntl.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "cache/file.hpp"
#include "cache/sha256.hpp"
#include "cache/signature.hpp"
#include "cache/strict_json.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

}  // namespace

std::string Manifest::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const Wanted& kernel : kernels) {
    if (sha256_hex(kernel.signature_json) != kernel.key) {
      throw Error(Code::kInvalidArgument, "cannot write a manifest", "key " + kernel.key + " is not its signature's");
    }
    list.push_back({{"key", kernel.key}, {"signature", parse_strict(kernel.signature_json, "a signature", kMaxBytes)}});
  }
  return nlohmann::json({{"kernels", std::move(list)}, {"name", name}, {"schema", kManifestSchema}})
             .dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

Manifest Manifest::parse(std::string_view text, std::string_view origin) {
  const std::string subject = "cannot read manifest '" + std::string(origin) + "'";
  const nlohmann::json json = parse_strict(text, "manifest '" + std::string(origin) + "'", kMaxBytes);
  Manifest manifest;
  std::set<std::string> seen;
  try {
    if (unsigned_at(json, "schema") != kManifestSchema) {
      throw Error(Code::kInvalidInput, subject, "its schema is not " + std::to_string(kManifestSchema));
    }
    if (json.size() != 3) throw Error(Code::kInvalidInput, subject, "it has members it should not have");
    manifest.name = json.at("name").get<std::string>();
    if (!json.at("kernels").is_array()) throw Error(Code::kInvalidInput, subject, "/kernels is not an array");
    for (const nlohmann::json& kernel : json.at("kernels")) {
      const std::string at = "/kernels/" + std::to_string(manifest.kernels.size());
      Wanted wanted{kernel.at("key").get<std::string>(), canonical(kernel.at("signature"))};
      if (kernel.size() != 2) throw Error(Code::kInvalidInput, subject, at + " has members it should not have");
      if (!seen.insert(wanted.key).second) throw Error(Code::kInvalidInput, subject, at + "/key is repeated");
      (void)Signature::parse(wanted.signature_json);
      if (sha256_hex(wanted.signature_json) != wanted.key) {
        throw Error(Code::kInvalidInput, subject, at + "/key is not the key of its signature");
      }
      manifest.kernels.push_back(std::move(wanted));
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::kInvalidInput, subject, e.what());
  }
  return manifest;
}

Manifest Manifest::load(const std::filesystem::path& file) {
  const FileRead read = read_file(AT_FDCWD, file.string(), kMaxBytes);
  if (read.error != 0) {
    throw Error(read.error == ENOENT ? Code::kNotFound : Code::kIo, "cannot read manifest '" + file.string() + "'",
                error_text(read.error));
  }
  return parse(read.bytes, file.string());
}

void Manifest::save(const std::filesystem::path& file) const {
  const std::filesystem::path target = std::filesystem::absolute(file);
  const std::string text = to_json();
  try {
    const FileDescriptor directory(::open(target.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory) throw std::system_error(errno, std::generic_category(), "open directory");
    AtomicFile out(directory.get(), target.filename().string(), 0644);
    out.write(text);
    out.commit();
  } catch (const std::system_error& e) {
    throw Error(Code::kIo, "cannot write manifest '" + file.string() + "'", e.what());
  }
}

}  // namespace commfuse::cache
