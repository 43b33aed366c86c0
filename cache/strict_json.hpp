// JSON from outside: the parser's own leniencies (repeated keys, unbounded nesting) closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace commfuse::cache {

/// Parses untrusted `text`. Throws Error(kInvalidInput) saying what is wrong with `what` if the text is longer than
/// `max_bytes`, not JSON, not UTF-8, nested deeper than 16 levels, or repeats a key within an object.
[[nodiscard]] nlohmann::json parse_strict(std::string_view text, std::string_view what, std::size_t max_bytes);

/// The member `name` of an object, which must be an integer from 0 up as written: 1.0 and 1e30 are not. Throws
/// nlohmann::json::exception if it is missing, Error(kInvalidInput) otherwise.
[[nodiscard]] std::uint64_t unsigned_at(const nlohmann::json& object, const char* name);

/// Sorted keys, no white space. Throws Error(kInvalidArgument) if a string is not UTF-8.
[[nodiscard]] std::string canonical(const nlohmann::json& value);

}  // namespace commfuse::cache
