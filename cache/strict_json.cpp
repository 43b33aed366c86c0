#include "cache/strict_json.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "commfuse/error.hpp"

namespace commfuse::cache {
namespace {

constexpr int kMaxDepth = 16;

std::string shown(const std::string& key) { return key.size() <= 80 ? key : key.substr(0, 80) + "..."; }

}  // namespace

nlohmann::json parse_strict(std::string_view text, std::string_view what, std::size_t max_bytes) {
  using nlohmann::json;
  const std::string subject = "cannot read " + std::string(what);
  if (text.size() > max_bytes) {
    throw Error(
        Code::kInvalidInput, subject,
        "it has " + std::to_string(text.size()) + " bytes, more than the " + std::to_string(max_bytes) + " allowed");
  }
  std::vector<std::set<std::string>> keys;
  const json::parser_callback_t check = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxDepth) throw Error(Code::kInvalidInput, subject, "it is nested too deeply");
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second) {
          throw Error(Code::kInvalidInput, subject, "key '" + shown(parsed.get<std::string>()) + "' is repeated");
        }
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& e) {
    throw Error(Code::kInvalidInput, subject, e.what());
  }
}

std::uint64_t unsigned_at(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = object.at(name);
  // The conversion of a floating-point number out of range is undefined, and get() performs it.
  if (!value.is_number_unsigned()) {
    throw Error(Code::kInvalidInput, "cannot read JSON", std::string("member '") + name + "' is not a whole number");
  }
  return value.get<std::uint64_t>();
}

std::string canonical(const nlohmann::json& value) {
  try {
    return value.dump();
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::kInvalidArgument, "cannot write JSON", e.what());
  }
}

}  // namespace commfuse::cache
