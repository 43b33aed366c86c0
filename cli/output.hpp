// What a command prints.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "commfuse/error.hpp"

namespace commfuse::cli {

/// Text or a document to stdout. Throws Error(kIo) if it cannot be written (full disk, closed pipe).
void print(std::string_view text);
void print_document(const nlohmann::json& document);

/// The JSON form of an error: code, message, cause, remedy.
[[nodiscard]] nlohmann::json error_document(const Error& error);

/// "commfuse: ..." with cause and remedy to stderr and, if `json`, the JSON form to stdout.
void print_error(const Error& error, bool json) noexcept;

}  // namespace commfuse::cli
