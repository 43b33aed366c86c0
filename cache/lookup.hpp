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

/// As above, of an entry in memory.
[[nodiscard]] Lookup verify_entry(std::string_view key, const Hit& entry);

/// What Store::list says of the entries of one layer; `writable` is left unset.
[[nodiscard]] std::vector<EntryInfo> list_entries(const Layer& layer);

}  // namespace commfuse::cache
