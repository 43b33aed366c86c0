#include "cache/entry.hpp"

#include <nlohmann/json.hpp>

#include "cache/sha256.hpp"
#include "cache/strict_json.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

constexpr std::uint64_t kEndOfTime = 253'402'300'799;

}  // namespace

std::string Metadata::to_json() const {
  nlohmann::json json;
  json["commfuse"] = version;
  json["created"] = created;
  json["cubin"] = {{"sha256", cubin_sha256}, {"size", cubin_bytes}};
  json["facts"] = parse_strict(facts_json, "the facts of an entry", kMaxFactsBytes);
  json["schema"] = kEntrySchema;
  json["signature"] = parse_strict(signature_json, "the signature of an entry", kMaxMetadataBytes);
  if (!json["facts"].is_object() || !json["signature"].is_object()) {
    throw Error(Code::kInvalidArgument, "cannot write an entry", "its facts or its signature are not a JSON object");
  }
  json["check"] = sha256_hex(canonical(json));
  return canonical(json);
}

Metadata Metadata::parse(std::string_view text) {
  constexpr auto kSubject = "cannot read the metadata of an entry";
  nlohmann::json json = parse_strict(text, "the metadata of an entry", kMaxMetadataBytes);
  Metadata m;
  try {
    if (!json.is_object() || json.size() != 7 || json.at("cubin").size() != 2) {
      throw Error(Code::kInvalidInput, kSubject, "it does not have the members of an entry");
    }
    const std::string check = json.at("check").get<std::string>();
    const bool is_canonical = canonical(json) == text;
    json.erase("check");
    if (!is_canonical || sha256_hex(canonical(json)) != check) {
      throw Error(Code::kInvalidInput, kSubject, "its bytes are not those that were written");
    }
    if (unsigned_at(json, "schema") != kEntrySchema) {
      throw Error(Code::kInvalidInput, kSubject, "its schema is not " + std::to_string(kEntrySchema));
    }
    const nlohmann::json& cubin = json.at("cubin");
    if (!json.at("facts").is_object() || !json.at("signature").is_object()) {
      throw Error(Code::kInvalidInput, kSubject, "a member has the wrong type");
    }
    m.version = json.at("commfuse").get<std::string>();
    const auto created = unsigned_at(json, "created");
    if (created > kEndOfTime) throw Error(Code::kInvalidInput, kSubject, "it was made after the year 9999");
    m.created = static_cast<std::int64_t>(created);
    m.cubin_sha256 = cubin.at("sha256").get<std::string>();
    m.cubin_bytes = unsigned_at(cubin, "size");
    m.facts_json = canonical(json.at("facts"));
    m.signature_json = canonical(json.at("signature"));
    m.kernel = json.at("signature").at("kernel").get<std::string>();
    m.arch = json.at("signature").at("arch").get<std::string>();
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::kInvalidInput, kSubject, e.what());
  }
  if (!is_sha256_hex(m.cubin_sha256)) throw Error(Code::kInvalidInput, kSubject, "its checksum is not a SHA-256");
  return m;
}

std::string metadata_name(std::string_view key) {
  return std::string(key.substr(0, 2)) + "/" + std::string(key) + ".json";
}

std::string cubin_name(std::string_view key) {
  return std::string(key.substr(0, 2)) + "/" + std::string(key) + ".cubin";
}

}  // namespace commfuse::cache
