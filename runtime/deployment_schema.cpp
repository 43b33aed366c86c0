#include "runtime/deployment_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>
#include <vector>

#include "commfuse/error.hpp"
#include "runtime/deployment_json.hpp"
#include "runtime/suggest.hpp"

namespace commfuse::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kShownFaults = 5;

const json& schema_document() {
  static const json document = json::parse(deployment_schema_text());
  return document;
}

const valijson::Schema& schema() {
  static const valijson::Schema* const parsed = [] {
    auto* result = new valijson::Schema;  // lives as long as the program, so exit order cannot matter
    valijson::SchemaParser(valijson::SchemaParser::kDraft7)
        .populateSchema(valijson::adapters::NlohmannJsonAdapter(schema_document()), *result);
    return result;
  }();
  return *parsed;
}

/// One place of the document with the part of the schema that rules it.
struct Place {
  std::string pointer;
  const json* value = nullptr;
  const json* rule = nullptr;
};

const json& resolved(const json& rule) {
  const auto reference = rule.find("$ref");
  if (reference == rule.end()) return rule;
  return schema_document().at(json::json_pointer(reference->get<std::string>().substr(1)));
}

/// Follows a validator's path ("<root>", "[operations]", "[0]") as far as the schema knows it.
Place place_of(const json& document, const std::vector<std::string>& path) {
  Place place{"", &document, &resolved(schema_document())};
  for (std::size_t i = 1; i < path.size(); ++i) {
    const std::string step = path[i].substr(1, path[i].size() - 2);
    if (place.value->is_object()) {
      const auto member = place.value->find(step);
      const auto properties = place.rule->find("properties");
      if (member == place.value->end() || properties == place.rule->end() || !properties->contains(step)) break;
      place.value = &*member;
      place.rule = &resolved(properties->at(step));
    } else if (place.value->is_array()) {
      const auto items = place.rule->find("items");
      const std::size_t index = std::stoul(step);
      if (items == place.rule->end() || index >= place.value->size()) break;
      place.value = &place.value->at(index);
      place.rule = &resolved(*items);
    } else {
      break;
    }
    place.pointer = pointer_child(place.pointer, step);
  }
  return place;
}

std::string found_text(const json& value) {
  if (value.is_string()) return json_quoted(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return value.size() == 1 ? "a list of 1 item" : fmt::format("a list of {} items", value.size());
  return value.dump();
}

std::vector<std::string> names_of(const json& list) {
  std::vector<std::string> names;
  for (const json& name : list) names.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  return names;
}

std::vector<std::string> keys_of(const json& object) {
  std::vector<std::string> keys;
  for (const auto& member : object.items()) keys.push_back(member.key());
  return keys;
}

std::string allowed_text(const json& rule) {
  if (rule.contains("enum")) return fmt::format("{}", fmt::join(names_of(rule.at("enum")), ", "));
  const std::string& type = rule.at("type").get_ref<const std::string&>();
  const std::string& description = rule.at("description").get_ref<const std::string&>();
  if (type == "integer") {
    return fmt::format("a whole number from {} to {} ({})", rule.at("minimum").dump(), rule.at("maximum").dump(),
                       description);
  }
  if (type == "array") {
    return fmt::format("a list of {} to {} different items ({})", rule.at("minItems").dump(),
                       rule.at("maxItems").dump(), description);
  }
  if (type == "boolean") return "true or false";
  if (type == "string") return fmt::format("a text: {}", description);
  return fmt::format("an object with the keys {}", fmt::join(keys_of(rule.at("properties")), ", "));
}

void add_object_faults(const Place& place, std::vector<std::string>& faults) {
  const json& properties = place.rule->at("properties");
  const std::vector<std::string> known = keys_of(properties);
  for (const auto& member : place.value->items()) {
    if (properties.contains(member.key())) continue;
    std::string fault =
        fmt::format("{}: unknown key; allowed: {}", pointer_child(place.pointer, member.key()), fmt::join(known, ", "));
    const std::string guess = closest_name(member.key(), known);
    if (!guess.empty()) fault += fmt::format("; did you mean \"{}\"?", guess);
    faults.push_back(std::move(fault));
  }
  for (const json& name : place.rule->at("required")) {
    const auto& key = name.get_ref<const std::string&>();
    if (place.value->contains(key)) continue;
    faults.push_back(fmt::format("{}: found nothing; allowed: {}", pointer_child(place.pointer, key),
                                 allowed_text(resolved(properties.at(key)))));
  }
}

void add_faults(const Place& place, std::vector<std::string>& faults) {
  const json& value = *place.value;
  const json& rule = *place.rule;
  const std::string pointer = place.pointer.empty() ? "the document" : place.pointer;
  if (value.is_object() && rule.contains("properties")) return add_object_faults(place, faults);
  if (value.is_array() && rule.value("uniqueItems", false)) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (std::find(value.begin(), value.begin() + static_cast<std::ptrdiff_t>(i), value[i]) ==
          value.begin() + static_cast<std::ptrdiff_t>(i)) {
        continue;
      }
      faults.push_back(fmt::format("{}/{}: found {} a second time; allowed: {}", pointer, i, found_text(value[i]),
                                   allowed_text(rule)));
      return;
    }
  }
  std::string fault = fmt::format("{}: found {}; allowed: {}", pointer, found_text(value), allowed_text(rule));
  if (value.is_string() && rule.contains("enum")) {
    const std::string guess = closest_name(value.get_ref<const std::string&>(), names_of(rule.at("enum")));
    if (!guess.empty()) fault += fmt::format("; did you mean \"{}\"?", guess);
  }
  faults.push_back(std::move(fault));
}

bool is_prefix(const std::vector<std::string>& shorter, const std::vector<std::string>& longer) {
  return shorter.size() < longer.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}

}  // namespace

void check_deployment_schema(const json& document, std::string_view origin) {
  valijson::ValidationResults results;
  valijson::Validator validator(valijson::Validator::kStrongTypes);
  if (validator.validate(schema(), valijson::adapters::NlohmannJsonAdapter(document), &results)) return;
  std::vector<std::string> faults;
  std::vector<std::string> last;
  for (const auto& result : results) {
    if (faults.size() >= kShownFaults) break;
    // An inner fault makes its surroundings fail too, and one place can break several rules: both are told once.
    if (!last.empty() && (result.context == last || is_prefix(result.context, last))) continue;
    add_faults(place_of(document, result.context), faults);
    last = result.context;
  }
  if (faults.size() > kShownFaults) faults.resize(kShownFaults);
  throw Error(Code::kInvalidInput, fmt::format("{} is not valid", origin), fmt::format("{}", fmt::join(faults, "; ")),
              "docs/deployment.md describes every key");
}

}  // namespace commfuse::runtime
