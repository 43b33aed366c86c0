// Reading JSON that nobody vouches for.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace commfuse::runtime {

inline constexpr std::size_t kMaxJsonBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonString = 1024;  ///< bytes; bounds the recursion of std::regex in the schema check
inline constexpr std::size_t kMaxJsonItems = 256;    ///< in one list or object; bounds the check for repeated items
inline constexpr std::size_t kMaxJsonValues = 16384;

/// Parses one document within the limits above. Refuses what JSON leaves open and readers disagree about: repeated
/// keys, numbers that are not whole or lie beyond 2^53, text that is not UTF-8. Throws Error(kInvalidInput) whose cause
/// gives the JSON pointer, or line and column where the text is no JSON at all. `origin` names the document.
[[nodiscard]] nlohmann::json parse_untrusted_json(std::string_view text, std::string_view origin);

/// A string as JSON would print it, in ASCII, cut after about 64 characters.
[[nodiscard]] std::string json_quoted(std::string_view text);

/// `/operations/0/op` + `patterns` -> `/operations/0/op/patterns`, with the characters that RFC 6901 escapes and
/// unprintable ones made safe.
[[nodiscard]] std::string pointer_child(std::string_view pointer, std::string_view key);

}  // namespace commfuse::runtime
