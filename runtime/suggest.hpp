// Guessing what a mistyped name was meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace commfuse::runtime {

/// The known name that is close enough to `text` to be meant, or an empty text. Case and `-` for `_` do not count;
/// about every third character may be wrong.
[[nodiscard]] std::string closest_name(std::string_view text, std::span<const std::string> known);

}  // namespace commfuse::runtime
