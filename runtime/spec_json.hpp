// Reading back what KernelSpec::to_json wrote.
#pragma once

#include <string>
#include <string_view>

#include "commfuse/spec.hpp"

namespace commfuse::runtime {

/// The spec of a text that KernelSpec::to_json wrote (stored signatures hold it). The text is not trusted: throws
/// Error(kInvalidInput) for anything else, including a spec that does not validate.
[[nodiscard]] KernelSpec spec_from_json(std::string_view text);

/// "the patterns of all_reduce: all_reduce, ...", for messages.
[[nodiscard]] std::string patterns_text(Op op);

}  // namespace commfuse::runtime
