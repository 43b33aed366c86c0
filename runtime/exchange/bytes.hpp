// Little-endian fields, written to and read from byte strings that came from elsewhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "commfuse/exchange.hpp"

namespace commfuse::runtime {

class ByteWriter {
 public:
  template <typename Integer>
  void integer(Integer value) {
    for (std::size_t i = 0; i < sizeof(Integer); ++i) {
      bytes_.push_back(static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff));
    }
  }
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  /// Cuts what is longer than `limit`: texts are for people.
  void text(std::string_view text, std::size_t limit) {
    text = text.substr(0, std::min<std::size_t>(limit, 0xffff));
    integer(static_cast<std::uint16_t>(text.size()));
    raw(std::as_bytes(std::span(text)));
  }
  [[nodiscard]] Blob take() { return std::move(bytes_); }

 private:
  Blob bytes_;
};

/// Reading past the end makes every further answer zero or empty and `is_good` false: a parser checks once, at its end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename Integer>
  [[nodiscard]] Integer integer() {
    std::uint64_t value = 0;
    const auto field = raw(sizeof(Integer));
    for (std::size_t i = 0; i < field.size(); ++i) value |= std::to_integer<std::uint64_t>(field[i]) << (8 * i);
    return static_cast<Integer>(value);
  }
  [[nodiscard]] std::span<const std::byte> raw(std::size_t count) {
    if (count > rest_.size()) {
      good_ = false;
      rest_ = {};
      return {};
    }
    const auto field = rest_.first(count);
    rest_ = rest_.subspan(count);
    return field;
  }
  [[nodiscard]] std::string text(std::size_t limit) {
    const auto length = integer<std::uint16_t>();
    if (length > limit) good_ = false;
    const auto field = raw(length);
    return good_ ? std::string(reinterpret_cast<const char*>(field.data()), field.size()) : std::string();
  }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }
  [[nodiscard]] bool is_good() const { return good_; }
  /// Nothing missing and nothing left over.
  [[nodiscard]] bool is_finished() const { return good_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
[[nodiscard]] inline std::span<const std::byte> as_span(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace commfuse::runtime
