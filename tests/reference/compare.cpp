#include "reference/compare.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "reference/formats.hpp"

namespace commfuse::reference {
namespace {

std::uint32_t bits_at(const Bytes& bytes, Format format, std::size_t index) {
  const auto size = static_cast<std::size_t>(format_bytes(format));
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= static_cast<std::uint32_t>(bytes[index * size + i]) << (8 * i);
  return value;
}

float value_of(std::uint32_t bits, Format format) {
  switch (format) {
    case Format::kFp16:
      return from_half(static_cast<std::uint16_t>(bits));
    case Format::kBf16:
      return from_bfloat(static_cast<std::uint16_t>(bits));
    case Format::kFp32:
      return float_of(bits);
    case Format::kE4m3:
      return from_e4m3(static_cast<std::uint8_t>(bits));
    case Format::kE2m1Pair:
    case Format::kByte:
    case Format::kWord:
      break;
  }
  return static_cast<float>(bits);
}

std::string show(std::uint32_t bits, Format format) {
  const int digits = 2 * format_bytes(format);
  if (format == Format::kE2m1Pair) {
    return fmt::format("0x{:02x} ({}, {})", bits, static_cast<double>(from_e2m1(bits & 0xf)),
                       static_cast<double>(from_e2m1(static_cast<std::uint8_t>(bits >> 4))));
  }
  return fmt::format("0x{:0{}x} ({:.9g})", bits, digits, static_cast<double>(value_of(bits, format)));
}

bool is_real(Format format) { return format == Format::kFp16 || format == Format::kBf16 || format == Format::kFp32; }

/// Position of a value on the line of all values of its format, both zeros at 0.
std::int64_t position(std::uint32_t bits, Format format) {
  const std::uint32_t sign = 1u << (8 * format_bytes(format) - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return (bits & sign) != 0 ? -magnitude : magnitude;
}

bool equal(std::uint32_t expected, std::uint32_t actual, Format format, const CompareOptions& options) {
  if (expected == actual) return true;
  if (!is_real(format) && format != Format::kE4m3) return false;
  const bool expected_nan = std::isnan(value_of(expected, format));
  const bool actual_nan = std::isnan(value_of(actual, format));
  if (expected_nan || actual_nan) return options.any_nan_equal && expected_nan && actual_nan;
  if (options.max_ulp == 0 || !is_real(format)) return false;
  const std::int64_t distance = position(expected, format) - position(actual, format);
  return std::abs(distance) <= options.max_ulp;
}

/// Counts mismatches and writes out the first ones.
class Report {
 public:
  Report(std::string_view name, const CompareOptions& options) : name_(name), options_(options) {}

  void add(std::size_t index, const std::string& expected, const std::string& actual) {
    if (count_++ >= options_.shown) return;
    const std::size_t columns = options_.columns == 0 ? 1 : options_.columns;
    lines_ +=
        fmt::format("\n  row {}, column {}: expected {}, got {}", index / columns, index % columns, expected, actual);
  }
  [[nodiscard]] std::string text(std::size_t total) const {
    if (count_ == 0) return {};
    const std::string_view more = count_ > options_.shown ? "\n  ..." : "";
    return fmt::format("{}: {} of {} elements differ{}{}", name_, count_, total, lines_, more);
  }

 private:
  std::string name_;
  CompareOptions options_;
  std::size_t count_ = 0;
  std::string lines_;
};

}  // namespace

Format format_of(DataType type) {
  switch (type) {
    case DataType::kFp16:
      return Format::kFp16;
    case DataType::kBf16:
      return Format::kBf16;
    case DataType::kFp32:
      return Format::kFp32;
  }
  return Format::kByte;
}

int format_bytes(Format format) {
  switch (format) {
    case Format::kFp16:
    case Format::kBf16:
      return 2;
    case Format::kFp32:
    case Format::kWord:
      return 4;
    case Format::kE4m3:
    case Format::kE2m1Pair:
    case Format::kByte:
      return 1;
  }
  return 1;
}

std::string compare(std::string_view name, const Bytes& expected, const Bytes& actual, Format format,
                    const CompareOptions& options) {
  if (expected.size() != actual.size()) {
    return fmt::format("{}: expected {} bytes, got {}", name, expected.size(), actual.size());
  }
  if (expected == actual) return {};
  const std::size_t total = expected.size() / static_cast<std::size_t>(format_bytes(format));
  Report report(name, options);
  for (std::size_t i = 0; i < total; ++i) {
    const std::uint32_t want = bits_at(expected, format, i);
    const std::uint32_t got = bits_at(actual, format, i);
    if (!equal(want, got, format, options)) report.add(i, show(want, format), show(got, format));
  }
  return report.text(total);
}

std::string compare_near(std::string_view name, const std::vector<double>& expected, const Bytes& actual, DataType type,
                         double relative, double absolute, const CompareOptions& options) {
  const Format format = format_of(type);
  if (expected.size() * static_cast<std::size_t>(format_bytes(format)) != actual.size()) {
    return fmt::format("{}: expected {} elements, got {} bytes", name, expected.size(), actual.size());
  }
  const double largest = type == DataType::kFp16 ? 65504.0 : static_cast<double>(std::numeric_limits<float>::max());
  Report report(name, options);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::uint32_t bits = bits_at(actual, format, i);
    const auto got = static_cast<double>(value_of(bits, format));
    const double want = expected[i];
    const double slack = absolute + relative * std::abs(want);
    const bool same = std::isnan(want) ? std::isnan(got)
                      : std::isinf(got)
                          ? std::abs(want) * (1 + relative) >= largest && std::signbit(want) == std::signbit(got)
                          : std::abs(want - got) <= slack;
    if (!same) report.add(i, fmt::format("{:.9g}", want), show(bits, format));
  }
  return report.text(expected.size());
}

}  // namespace commfuse::reference
