// Quantities as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace commfuse::cli {

[[nodiscard]] std::string bytes_text(std::uint64_t bytes);    ///< "12.3 KiB"
[[nodiscard]] std::string time_text(double milliseconds);     ///< "7.4 ms", "1.25 s"
[[nodiscard]] std::string moment_text(std::int64_t seconds);  ///< since 1970, as UTC: "2025-01-31 12:00"
/// "1 kernel", "2 kernels"
[[nodiscard]] std::string count_text(std::int64_t count, std::string_view noun);

}  // namespace commfuse::cli
