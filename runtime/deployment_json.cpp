#include "runtime/deployment_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "commfuse/error.hpp"

namespace commfuse::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kShownCharacters = 64;
constexpr std::uint64_t kMaxExactInteger = std::uint64_t{1} << 53;

/// Builds a document from parser events and stops at the first event that breaks a limit.
class Reader final : public nlohmann::json_sax<json> {
 public:
  Reader(std::string_view text, std::string_view origin) : text_(text), origin_(origin) {}

  json take() { return std::move(root_); }

  bool null() override { return add(json(nullptr)); }
  bool boolean(bool value) override { return add(json(value)); }

  bool number_integer(number_integer_t value) override {
    if (value < -static_cast<std::int64_t>(kMaxExactInteger)) fail_number(std::to_string(value));
    return add(json(value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > kMaxExactInteger) fail_number(std::to_string(value));
    return add(json(value));
  }

  bool number_float(number_float_t, const string_t& spelling) override { fail_number(spelling); }

  bool string(string_t& value) override {
    check_length(value);
    return add(json(std::move(value)));
  }

  bool binary(binary_t&) override { fail(here(), "found binary data", "JSON text"); }

  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }

  bool key(string_t& value) override {
    check_length(value);
    Frame& frame = frames_.back();
    if (frame.container->contains(value)) {
      fail(pointer(), fmt::format("found the key {} twice", json_quoted(value)), "each key once");
    }
    if (frame.container->size() >= kMaxJsonItems) too_many(kMaxJsonItems, "keys in one object");
    frame.key = std::move(value);
    return true;
  }

  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error) override {
    const std::size_t end = std::min(position == 0 ? 0 : position - 1, text_.size());
    const std::string_view before = text_.substr(0, end);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t last_newline = before.rfind('\n');
    const std::size_t column = end - (last_newline == std::string_view::npos ? 0 : last_newline + 1) + 1;
    // 406: a number that no double holds; it has no event of its own.
    if (error.id == 406) fail_number(token);
    const bool utf8 = std::string_view(error.what()).find("UTF-8") != std::string_view::npos;
    const std::string found = end == text_.size() ? std::string("the text ends too early")
                              : utf8              ? std::string("the text is not UTF-8")
                                                  : fmt::format("no JSON near {}", json_quoted(token));
    throw Error(Code::kInvalidInput, fmt::format("{} is not JSON", origin_),
                fmt::format("line {}, column {}: {}", line, column, found));
  }

 private:
  struct Frame {
    json* container;
    std::string key;  // of the member being read; unused for lists
  };

  /// Of the innermost open container.
  [[nodiscard]] std::string pointer() const {
    std::string result;
    for (std::size_t i = 0; i + 1 < frames_.size(); ++i) result = pointer_child(result, step(frames_[i]));
    return result;
  }

  /// Of the value being read.
  [[nodiscard]] std::string here() const {
    return frames_.empty() ? std::string() : pointer_child(pointer(), step(frames_.back()));
  }

  /// The key or index of a frame's current member. An open child is already part of its list.
  [[nodiscard]] std::string step(const Frame& frame) const {
    if (frame.container->is_object()) return frame.key;
    const bool child_is_open = &frame != &frames_.back();
    return std::to_string(frame.container->size() - (child_is_open ? 1 : 0));
  }

  [[noreturn]] void fail(const std::string& pointer, const std::string& found, std::string_view allowed) const {
    throw Error(Code::kInvalidInput, fmt::format("{} is not valid", origin_),
                fmt::format("{}: {}; allowed: {}", pointer.empty() ? "the document" : pointer, found, allowed));
  }

  [[noreturn]] void fail_number(std::string_view spelling) const {
    fail(here(), fmt::format("found the number {}", json_quoted(spelling)), "whole numbers up to 2^53");
  }

  [[noreturn]] void too_many(std::size_t limit, std::string_view what) const {
    fail(pointer(), fmt::format("found more than {} {}", limit, what), fmt::format("at most {}", limit));
  }

  void check_length(const std::string& value) const {
    if (value.size() > kMaxJsonString) {
      fail(here(), fmt::format("found a text of {} bytes", value.size()), fmt::format("at most {}", kMaxJsonString));
    }
  }

  json* put(json&& value) {
    if (++values_ > kMaxJsonValues) too_many(kMaxJsonValues, "values in the document");
    if (frames_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Frame& frame = frames_.back();
    if (frame.container->is_object()) return &((*frame.container)[frame.key] = std::move(value));
    if (frame.container->size() >= kMaxJsonItems) too_many(kMaxJsonItems, "items in one list");
    frame.container->push_back(std::move(value));
    return &frame.container->back();
  }

  bool add(json&& value) {
    put(std::move(value));
    return true;
  }

  bool open(json&& value) {
    if (frames_.size() >= kMaxJsonDepth) {
      throw Error(
          Code::kInvalidInput, fmt::format("{} is not valid", origin_),
          fmt::format("found more than {} levels of nesting; allowed: at most {}", kMaxJsonDepth, kMaxJsonDepth));
    }
    json* container = put(std::move(value));
    frames_.push_back({container, {}});
    return true;
  }

  bool close() {
    frames_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string_view origin_;
  json root_;
  std::vector<Frame> frames_;
  std::size_t values_ = 0;
};

}  // namespace

std::string json_quoted(std::string_view text) {
  const bool cut = text.size() > kShownCharacters;
  std::string shown = json(text.substr(0, kShownCharacters)).dump(-1, ' ', true, json::error_handler_t::replace);
  if (cut) shown.insert(shown.size() - 1, "...");
  return shown;
}

std::string pointer_child(std::string_view pointer, std::string_view key) {
  std::string safe = json_quoted(key);
  std::string result(pointer);
  result += '/';
  for (const char c : std::string_view(safe).substr(1, safe.size() - 2)) {
    if (c == '~') {
      result += "~0";
    } else if (c == '/') {
      result += "~1";
    } else {
      result += c;
    }
  }
  return result;
}

json parse_untrusted_json(std::string_view text, std::string_view origin) {
  if (text.size() > kMaxJsonBytes) {
    throw Error(Code::kInvalidInput, fmt::format("{} is too large", origin),
                fmt::format("found {} bytes; allowed: at most {}", text.size(), kMaxJsonBytes));
  }
  Reader reader(text, origin);
  json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace commfuse::runtime
