// From a kernel spec to the text of its translation unit. Knows neither files nor compilers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "commfuse/spec.hpp"

namespace commfuse::runtime {

/// Where a kernel's template is, and what it is called there.
struct TemplateEntry {
  std::string_view header;    ///< as an include names it
  std::string_view function;  ///< in namespace commfuse::device
  std::string_view params;    ///< the parameter block, there too
  std::size_t params_size = 0;
};
[[nodiscard]] TemplateEntry template_of(const KernelSpec& spec);

/// The spec's constants as a struct, as the templates expect them (templates/device/types.cuh shows one). The
/// simulator's list of configurations is made with it too.
[[nodiscard]] std::string render_config(const KernelSpec& spec, std::string_view struct_name);

/// The whole translation unit: the template's include, the constants, one `extern "C"` kernel called spec.name().
/// Specs that differ in more than `arch` give
/// different texts, equal specs equal ones. The spec must be valid.
[[nodiscard]] std::string render_source(const KernelSpec& spec);

}  // namespace commfuse::runtime
