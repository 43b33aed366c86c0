// The device templates, embedded in the library at build time (cmake/EmbedTemplates.cmake).
#pragma once

#include <span>
#include <string_view>

namespace commfuse::runtime {

struct EmbeddedTemplate {
  std::string_view name;  ///< as other files include it: "device/ptx.cuh", "all_reduce.cuh"
  std::string_view text;
};

/// All of them, sorted by name.
[[nodiscard]] std::span<const EmbeddedTemplate> embedded_templates() noexcept;

}  // namespace commfuse::runtime
