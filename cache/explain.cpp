#include "cache/explain.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cache/entry.hpp"
#include "cache/signature.hpp"
#include "cache/strict_json.hpp"
#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

using Lines = std::vector<std::string>;

std::string arrow(const std::string& what, const std::string& from, const std::string& to) {
  return what + " " + from + " -> " + to;
}

void compare_headers(const Signature& from, const Signature& to, Lines& lines) {
  for (const auto& [name, hash] : to.headers_sha256) {
    const auto it = from.headers_sha256.find(name);
    if (it == from.headers_sha256.end()) {
      lines.push_back("header " + name + " added");
    } else if (it->second != hash) {
      lines.push_back("header " + name + " changed");
    }
  }
  for (const auto& [name, hash] : from.headers_sha256) {
    if (!to.headers_sha256.contains(name)) lines.push_back("header " + name + " removed");
  }
}

void compare_options(const Signature& from, const Signature& to, Lines& lines) {
  const auto missing_in = [](const Lines& list, const std::string& option) {
    return std::find(list.begin(), list.end(), option) == list.end();
  };
  const std::size_t before = lines.size();
  for (const std::string& option : to.options) {
    if (missing_in(from.options, option)) lines.push_back("option " + option + " added");
  }
  for (const std::string& option : from.options) {
    if (missing_in(to.options, option)) lines.push_back("option " + option + " removed");
  }
  if (lines.size() == before && from.options != to.options) lines.push_back("options in another order or number");
}

void compare_specs(const Signature& from, const Signature& to, Lines& lines) {
  const auto a = nlohmann::json::parse(from.spec_json).flatten();
  const auto b = nlohmann::json::parse(to.spec_json).flatten();
  for (const auto& [path, value] : b.items()) {
    if (!a.contains(path)) {
      lines.push_back("spec " + path + " added: " + value.dump());
    } else if (a.at(path) != value) {
      lines.push_back(arrow("spec " + path, a.at(path).dump(), value.dump()));
    }
  }
  for (const auto& [path, value] : a.items()) {
    if (!b.contains(path)) lines.push_back("spec " + path + " removed: " + value.dump());
  }
}

Lines compare(const Signature& from, const Signature& to) {
  Lines lines;
  if (from.kernel != to.kernel) lines.push_back(arrow("kernel", from.kernel, to.kernel));
  if (from.arch != to.arch) lines.push_back(arrow("arch", from.arch, to.arch));
  if (from.nvrtc_build != to.nvrtc_build) lines.push_back(arrow("nvrtc", from.nvrtc_build, to.nvrtc_build));
  compare_headers(from, to, lines);
  if (from.source_sha256 != to.source_sha256) lines.push_back("generated source changed");
  compare_options(from, to, lines);
  compare_specs(from, to, lines);
  return lines;
}

}  // namespace

std::vector<std::string> differences(std::string_view old_signature_json, std::string_view new_signature_json) {
  try {
    return compare(Signature::parse(old_signature_json), Signature::parse(new_signature_json));
  } catch (const Error& e) {
    return {std::string("not comparable: ") + e.cause()};
  }
}

Explanation explain(const std::vector<EntryInfo>& entries, std::string_view signature_json) {
  Explanation best;
  Signature asked;
  try {
    asked = Signature::parse(signature_json);
  } catch (const Error& e) {
    best.summary = std::string("the signature cannot be read: ") + e.cause();
    return best;
  }
  for (const EntryInfo& entry : entries) {
    if (entry.kernel != asked.kernel || !entry.problem.empty()) continue;
    Lines changes;
    try {
      changes = compare(Signature::parse(Metadata::parse(entry.metadata_json).signature_json), asked);
    } catch (const Error&) {
      continue;
    }
    if (changes.empty()) continue;  // it is the entry itself
    const bool nearer = best.nearest_key.empty() || changes.size() < best.changes.size();
    if (!nearer) continue;
    best.nearest_key = entry.key;
    best.layer = entry.layer;
    best.changes = std::move(changes);
  }
  if (best.nearest_key.empty()) {
    best.summary = "no entry of " + asked.kernel;
    return best;
  }
  best.summary = "nearest entry " + best.nearest_key.substr(0, 12) + ": ";
  for (std::size_t i = 0; i < best.changes.size(); ++i) best.summary += (i == 0 ? "" : "; ") + best.changes[i];
  return best;
}

}  // namespace commfuse::cache
