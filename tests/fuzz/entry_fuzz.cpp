// Any bytes as a cache entry. Up to the first zero byte they are the metadata, behind it the cubin.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cache/cubin.hpp"
#include "cache/entry.hpp"
#include "cache/lookup.hpp"
#include "cache/sha256.hpp"
#include "fuzz_support.hpp"

namespace {

using namespace commfuse;
using namespace commfuse::cache;
using fuzz::require;

void read_metadata(std::string_view text) {
  fuzz::expect_value_or_invalid_input([&] { require(Metadata::parse(text).to_json() == text); });
}

/// Checksums that no mutation gets right, set right, so that what lies behind them is reached. The key of the signature
/// that is in it comes back in `key`.
std::string with_right_checksums(std::string_view text, std::string_view cubin, std::string& key) {
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) return {};
  if (json.contains("signature"))
    key = sha256_hex(json["signature"].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (json.contains("cubin") && json["cubin"].is_object()) {
    json["cubin"]["sha256"] = sha256_hex(cubin);
    json["cubin"]["size"] = cubin.size();
  }
  json.erase("check");
  json["check"] = sha256_hex(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void read_cubin(std::string_view bytes) {
  const CubinCheck check = check_cubin(bytes, "sm_90a");
  require((check.result == CubinCheck::Result::kGood) == check.detail.empty());
}

/// The whole way of a look-up: a hit is exactly what was there, anything else says why it is none.
void read_whole(std::string_view metadata, std::string_view cubin, const std::string& key) {
  Hit entry;
  entry.cubin = cubin;
  entry.metadata_json = metadata;
  const Lookup found = verify_entry(key, entry);
  if (found) {
    require(found.hit->cubin == cubin && found.hit->metadata_json == metadata);
    require(sha256_hex(Metadata::parse(metadata).signature_json) == key);
  } else {
    require(found.reason == Miss::kAbsent || !found.detail.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view metadata = input.substr(0, end);
  const std::string_view cubin = end == std::string_view::npos ? std::string_view{} : input.substr(end + 1);
  read_metadata(metadata);
  read_cubin(cubin);
  std::string key(64, '0');
  const std::string repaired = with_right_checksums(metadata, cubin, key);
  read_metadata(repaired);
  read_whole(metadata, cubin, key);
  read_whole(repaired, cubin, key);
  return 0;
}
