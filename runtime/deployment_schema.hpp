// The shape of a deployment file, as schemas/deployment.schema.json says it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace commfuse::runtime {

/// The text of schemas/deployment.schema.json, which is built into the library.
[[nodiscard]] std::string_view deployment_schema_text() noexcept;

/// Throws Error(kInvalidInput) where the document does not follow the schema. The cause names up to five places: the
/// JSON pointer, what was found, what is allowed and, for a near miss, what was probably meant.
void check_deployment_schema(const nlohmann::json& document, std::string_view origin);

}  // namespace commfuse::runtime
