#include "cli/units.hpp"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace commfuse::cli {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string time_text(double milliseconds) {
  if (milliseconds < 10) return fmt::format("{:.1f} ms", milliseconds);
  if (milliseconds < 1000) return fmt::format("{:.0f} ms", milliseconds);
  if (milliseconds < 60'000) return fmt::format("{:.2f} s", milliseconds / 1000);
  return fmt::format("{:.1f} min", milliseconds / 60'000);
}

std::string moment_text(std::int64_t seconds) {
  const std::time_t moment = seconds;
  std::tm parts = {};
  std::array<char, 32> text = {};
  if (::gmtime_r(&moment, &parts) == nullptr) return "?";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts)};
}

std::string count_text(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace commfuse::cli
