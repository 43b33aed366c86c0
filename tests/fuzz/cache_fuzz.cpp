// The cache's readers of what comes from outside. The first byte of the input chooses the reader.
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cache/cubin.hpp"
#include "cache/entry.hpp"
#include "cache/explain.hpp"
#include "cache/manifest.hpp"
#include "cache/pack_format.hpp"
#include "cache/sha256.hpp"
#include "cache/signature.hpp"
#include "cache/ustar.hpp"
#include "commfuse/error.hpp"

namespace {

using namespace commfuse;
using namespace commfuse::cache;

// Ends the process: the fuzzer reports the input.
void require(bool condition) {
  if (!condition) __builtin_trap();
}

template <typename Read>
void expect_value_or_invalid_input(Read&& read) {
  try {
    read();
  } catch (const Error& e) {
    require(e.code() == Code::kInvalidInput);
  }
}

void read_signature(std::string_view text) {
  expect_value_or_invalid_input([&] {
    const Signature s = Signature::parse(text);
    require(s.to_json() == text);  // a signature has exactly one text
    require(Signature::parse(s.to_json()) == s);
    require(differences(text, text).empty());
  });
}

void read_metadata(std::string_view text) {
  expect_value_or_invalid_input([&] { require(Metadata::parse(text).to_json() == text); });
}

void read_manifest(std::string_view text) {
  expect_value_or_invalid_input([&] {
    const Manifest m = Manifest::parse(text);
    require(Manifest::parse(m.to_json()).kernels.size() == m.kernels.size());
  });
}

// Checksums that no mutation gets right, set right, so that what lies behind them is reached.
std::string with_right_checksums(std::string_view text) {
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) return {};
  if (json.contains("kernels") && json["kernels"].is_array()) {
    for (nlohmann::json& kernel : json["kernels"]) {
      if (kernel.is_object() && kernel.contains("signature")) kernel["key"] = sha256_hex(kernel["signature"].dump());
    }
    return json.dump();
  }
  json.erase("check");
  json["check"] = sha256_hex(json.dump());
  return json.dump();
}

void read_pack(std::string_view text) {
  expect_value_or_invalid_input([&] { require(pack_manifest(parse_pack_manifest(text, "fuzz")) == text); });
  expect_value_or_invalid_input([&] { require(pack_signature(parse_pack_signature(text, "fuzz")) == text); });
  std::array<char, kTarBlock> block{};
  text.copy(block.data(), block.size());
  std::string name;
  std::uint64_t size = 0;
  if (read_tar_header(block, name, size)) require(tar_header(name, size) == block);
}

void read_cubin(std::string_view bytes) {
  const CubinCheck check = check_cubin(bytes, "sm_90a");
  require((check.result == CubinCheck::Result::kGood) == check.detail.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 's':
      read_signature(text);
      break;
    case 'e':
      read_metadata(text);
      read_metadata(with_right_checksums(text));
      break;
    case 'm':
      read_manifest(text);
      read_manifest(with_right_checksums(text));
      break;
    case 'p':
      read_pack(text);
      break;
    case 'c':
      read_cubin(text);
      break;
    default:
      break;
  }
  return 0;
}
