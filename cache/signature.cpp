#include "cache/signature.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cache/sha256.hpp"
#include "cache/strict_json.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxText = 4096;

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void refuse(const std::string& field, const std::string& found, const std::string& allowed) {
  std::string shown = found.substr(0, 80);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  throw Error(Code::kInvalidArgument, "cannot key a kernel", field + " is '" + shown + "'; allowed is " + allowed);
}

void check_kernel(const std::string& name) {
  const auto good = [](char c) { return is_letter_or_digit(c) || c == '_'; };
  if (name.empty() || name.size() > 255 || !std::all_of(name.begin(), name.end(), good)) {
    refuse("kernel", name, "1 to 255 letters, digits and '_'");
  }
}

void check_sha256(const std::string& field, const std::string& text) {
  if (!is_sha256_hex(text)) refuse(field, text, "64 lower-case hexadecimal digits");
}

// A header's name is what the source includes it by. An absolute name or one with ".." would be a path of this machine.
void check_header_name(const std::string& name) {
  const auto good = [](char c) { return is_letter_or_digit(c) || c == '_' || c == '.' || c == '-' || c == '/'; };
  const bool path = name.starts_with('/') || name.find("..") != std::string::npos;
  if (name.empty() || name.size() > 255 || path || !std::all_of(name.begin(), name.end(), good)) {
    refuse("header name", name, "1 to 255 letters, digits, '_', '.', '-' and '/', relative and without '..'");
  }
}

// These make the compiler read files whose content is not in the signature, or write files beside the cubin.
void check_option(const std::string& option) {
  static constexpr std::array<std::string_view, 14> kOfFiles = {
      "-I",        "--include-path",       "--pre-include", "-include",           "--pch",
      "-pch",      "--create-pch",         "-create-pch",   "--use-pch",          "-use-pch",
      "--pch-dir", "--fdevice-time-trace", "-pch-dir",      "-fdevice-time-trace"};
  if (option.empty() || option.size() > kMaxText) refuse("option", option, "1 to 4096 bytes");
  const auto opens_files = [&](std::string_view name) {
    if (!option.starts_with(name)) return false;
    return name == "-I" || option.size() == name.size() || option[name.size()] == '=';
  };
  if (std::any_of(kOfFiles.begin(), kOfFiles.end(), opens_files)) {
    refuse("option", option, "an option without files, because the key does not cover what they hold");
  }
}

void check_nvrtc_build(const std::string& build) {
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7f && c != '/'; };
  if (build.empty() || build.size() > 100 || !is_digit(build[0]) ||
      !std::all_of(build.begin(), build.end(), printable)) {
    refuse("nvrtc", build, "a version and build like '13.0.88 CL-36424714'");
  }
}

void check_arch(const std::string& arch) {
  const auto allowed = "sm_ with two or three digits and at most one letter 'a' or 'f'";
  if (!arch.starts_with("sm_")) refuse("arch", arch, allowed);
  std::string_view rest = std::string_view(arch).substr(3);
  if (rest.ends_with('a') || rest.ends_with('f')) rest.remove_suffix(1);
  if (rest.size() < 2 || rest.size() > 3 || !std::all_of(rest.begin(), rest.end(), is_digit)) {
    refuse("arch", arch, allowed);
  }
}

nlohmann::json read_spec(const std::string& text) {
  nlohmann::json spec;
  try {
    spec = parse_strict(text, "the kernel's spec", kMaxBytes);
  } catch (const Error& e) {
    throw Error(Code::kInvalidArgument, e.message(), e.cause());
  }
  if (!spec.is_object() || canonical(spec) != text) refuse("spec", text, "a canonical JSON object");
  return spec;
}

}  // namespace

std::string Signature::to_json() const {
  if (schema != kSchema) refuse("schema", std::to_string(schema), std::to_string(kSchema));
  check_kernel(kernel);
  check_sha256("source", source_sha256);
  for (const auto& [name, hash] : headers_sha256) {
    check_header_name(name);
    check_sha256("header " + name, hash);
  }
  for (const std::string& option : options) check_option(option);
  check_nvrtc_build(nvrtc_build);
  check_arch(arch);

  nlohmann::json json;
  json["arch"] = arch;
  json["headers"] = nlohmann::json::object();
  for (const auto& [name, hash] : headers_sha256) json["headers"][name] = hash;
  json["kernel"] = kernel;
  json["nvrtc"] = nvrtc_build;
  json["options"] = options;
  json["schema"] = schema;
  json["source"] = source_sha256;
  json["spec"] = read_spec(spec_json);
  std::string text = canonical(json);
  if (text.size() > kMaxBytes) refuse("signature", text, "at most 1 MiB");
  return text;
}

std::string Signature::key() const { return sha256_hex(to_json()); }

Signature Signature::parse(std::string_view text) {
  const nlohmann::json json = parse_strict(text, "a signature", kMaxBytes);
  Signature s;
  try {
    if (unsigned_at(json, "schema") != kSchema) {
      throw Error(Code::kInvalidInput, "cannot read a signature",
                  "its schema is not " + std::to_string(kSchema) + ", the one this version knows");
    }
    s.arch = json.at("arch").get<std::string>();
    s.headers_sha256 = json.at("headers").get<std::map<std::string, std::string>>();
    s.kernel = json.at("kernel").get<std::string>();
    s.nvrtc_build = json.at("nvrtc").get<std::string>();
    s.options = json.at("options").get<std::vector<std::string>>();
    s.source_sha256 = json.at("source").get<std::string>();
    s.spec_json = canonical(json.at("spec"));
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::kInvalidInput, "cannot read a signature", e.what());
  }
  // Writing it again checks every rule at once: bounds of the fields, no others, order and white space.
  std::string again;
  try {
    again = s.to_json();
  } catch (const Error& e) {
    throw Error(Code::kInvalidInput, "cannot read a signature", e.cause());
  }
  if (again != text) {
    throw Error(Code::kInvalidInput, "cannot read a signature",
                "it is not canonical, or has members it should not have");
  }
  return s;
}

}  // namespace commfuse::cache
