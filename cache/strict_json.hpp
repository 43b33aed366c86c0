// JSON from outside: the parser's own leniencies (repeated keys, unbounded nesting) closed.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace commfuse::cache {

/// Parses untrusted `text`. Throws Error(kInvalidInput) saying what is wrong with `what` if the text is longer than
/// `max_bytes`, not JSON, not UTF-8, nested deeper than 16 levels, or repeats a key within an object.
[[nodiscard]] nlohmann::json parse_strict(std::string_view text, std::string_view what, std::size_t max_bytes);

/// Sorted keys, no white space. Throws Error(kInvalidArgument) if a string is not UTF-8.
[[nodiscard]] std::string canonical(const nlohmann::json& value);

}  // namespace commfuse::cache
