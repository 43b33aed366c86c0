// Any bytes as a signature, and as a manifest, which is a list of signatures.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cache/explain.hpp"
#include "cache/manifest.hpp"
#include "cache/sha256.hpp"
#include "cache/signature.hpp"
#include "fuzz_support.hpp"

namespace {

using namespace commfuse;
using namespace commfuse::cache;
using fuzz::require;

void read_signature(std::string_view text) {
  fuzz::expect_value_or_invalid_input([&] {
    const Signature s = Signature::parse(text);
    require(s.to_json() == text);  // a signature has exactly one text
    require(Signature::parse(s.to_json()) == s);
    require(differences(text, text).empty());
  });
}

void read_manifest(std::string_view text) {
  fuzz::expect_value_or_invalid_input([&] {
    const Manifest m = Manifest::parse(text);
    require(Manifest::parse(m.to_json()).kernels.size() == m.kernels.size());
  });
}

/// Keys that no mutation gets right, set right, so that what lies behind them is reached.
std::string with_right_keys(std::string_view text) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object() || !json.contains("kernels") || !json["kernels"].is_array()) return {};
  for (nlohmann::json& kernel : json["kernels"]) {
    if (kernel.is_object() && kernel.contains("signature")) {
      kernel["key"] = sha256_hex(kernel["signature"].dump(-1, ' ', false, kReplace));
    }
  }
  return json.dump(-1, ' ', false, kReplace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_signature(text);
  read_manifest(text);
  read_manifest(with_right_keys(text));
  return 0;
}
