// Reading and verifying one entry of one layer.
#pragma once

#include <string_view>

#include "cache/layer.hpp"
#include "cache/store.hpp"

namespace commfuse::cache {

/// What Store::find promises, for a single layer.
[[nodiscard]] Lookup read_entry(const Layer& layer, std::string_view key, std::string_view signature_json);

/// The entry of `key` judged by itself, where nobody asks for a signature: as above, and the signature in it must be
/// the key's.
[[nodiscard]] Lookup verify_entry(const Layer& layer, std::string_view key);

}  // namespace commfuse::cache
