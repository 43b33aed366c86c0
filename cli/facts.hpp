// What an entry tells about its kernel beside the machine code (the facts of cache/entry.hpp). They come from a file:
// any of them may be missing or of another type.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "cache/entry.hpp"

namespace commfuse::cli {

/// The number called `name` in the group ("resources", "phases_ms"), or `otherwise`.
[[nodiscard]] inline double number_in(const nlohmann::json& facts, std::string_view group, std::string_view name,
                                      double otherwise = 0) {
  const auto members = facts.find(group);
  if (members == facts.end() || !members->is_object()) return otherwise;
  const auto member = members->find(name);
  return member != members->end() && member->is_number() ? member->get<double>() : otherwise;
}

}  // namespace commfuse::cli
