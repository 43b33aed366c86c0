#include "runtime/tuning.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "commfuse/error.hpp"
#include "runtime/deployment_file.hpp"
#include "runtime/deployment_json.hpp"
#include "runtime/pattern.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse::runtime {

// The order of their numbers.
template <>
inline constexpr std::array kNames<PatternClass> = {
    Named<PatternClass>{PatternClass::kSum, "sum"},
    Named<PatternClass>{PatternClass::kNorm, "norm"},
    Named<PatternClass>{PatternClass::kQuantised, "quantised"},
};

namespace {

using nlohmann::json;

constexpr int kSchema = 1;
constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 31) - 1;
constexpr int kMaxBlocks = 1 << 20;
constexpr int kMaxSms = 4096;
constexpr int kMaxThreads = 1024;
constexpr std::size_t kMaxDeviceName = 256;

/// One object of the document, with its place for messages. Every key must be asked for: check_keys() says so first.
class Object {
 public:
  Object(const json& value, std::string pointer, std::string_view origin)
      : value_(value), pointer_(std::move(pointer)), origin_(origin) {
    if (!value.is_object()) fail(pointer_, found(value), "an object");
  }

  /// All of `keys`, and nothing else.
  void check_keys(std::initializer_list<std::string_view> keys) const {
    for (const auto& member : value_.items()) {
      if (std::find(keys.begin(), keys.end(), member.key()) != keys.end()) continue;
      fail(pointer_child(pointer_, member.key()), "an unknown key", fmt::format("{}", fmt::join(keys, ", ")));
    }
    for (const std::string_view key : keys) {
      if (!value_.contains(key)) fail(pointer_child(pointer_, key), "nothing", "a value");
    }
  }

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    const json& member = value_.at(key);
    if (!member.is_number_integer() || member < low || member > high) {
      fail(pointer_child(pointer_, key), found(member), fmt::format("a whole number from {} to {}", low, high));
    }
    return member.get<std::int64_t>();
  }

  [[nodiscard]] int small_integer(const char* key, int low, int high) const {
    return static_cast<int>(integer(key, low, high));
  }

  template <typename Enum>
  [[nodiscard]] Enum name(const char* key) const {
    const json& member = value_.at(key);
    if (member.is_string()) {
      if (const auto value = value_of<Enum>(member.get_ref<const std::string&>())) return *value;
    }
    std::vector<std::string_view> known;
    for (const auto& entry : kNames<Enum>) known.push_back(entry.name);
    fail(pointer_child(pointer_, key), found(member), fmt::format("{}", fmt::join(known, ", ")));
  }

  [[nodiscard]] std::string text(const char* key, std::size_t longest) const {
    const json& member = value_.at(key);
    if (!member.is_string() || member.get_ref<const std::string&>().empty() ||
        member.get_ref<const std::string&>().size() > longest) {
      fail(pointer_child(pointer_, key), found(member), fmt::format("a text of 1 to {} bytes", longest));
    }
    return member.get<std::string>();
  }

  /// The items of a list, each as an object.
  [[nodiscard]] std::vector<Object> objects(const char* key, std::size_t fewest) const {
    const json& member = value_.at(key);
    const std::string pointer = pointer_child(pointer_, key);
    if (!member.is_array() || member.size() < fewest) {
      fail(pointer, found(member), fmt::format("a list of at least {} objects", fewest));
    }
    std::vector<Object> items;
    for (std::size_t i = 0; i < member.size(); ++i) {
      items.emplace_back(member[i], pointer_child(pointer, std::to_string(i)), origin_);
    }
    return items;
  }

  [[noreturn]] void fail_at(const char* key, std::string_view allowed) const {
    fail(pointer_child(pointer_, key), found(value_.at(key)), allowed);
  }

 private:
  static std::string found(const json& value) {
    if (value.is_string()) return json_quoted(value.get_ref<const std::string&>());
    if (value.is_structured()) return fmt::format("{} of {} items", value.type_name(), value.size());
    return value.dump();
  }

  [[noreturn]] void fail(const std::string& pointer, const std::string& what, std::string_view allowed) const {
    throw Error(Code::kInvalidInput, fmt::format("{} is not valid", origin_),
                fmt::format("{}: found {}; allowed: {}", pointer.empty() ? "the document" : pointer, what, allowed),
                "`commfuse tune` writes such files");
  }

  const json& value_;
  std::string pointer_;
  std::string_view origin_;
};

TuningChoice choice_from(const Object& object, std::int64_t tokens_before) {
  object.check_keys({"algorithm", "blocks", "cluster", "threads", "up_to_tokens"});
  TuningChoice choice;
  choice.up_to_tokens = object.integer("up_to_tokens", 1, kMaxTokens);
  if (choice.up_to_tokens <= tokens_before) {
    object.fail_at("up_to_tokens", fmt::format("more than the {} before it", tokens_before));
  }
  choice.algorithm = object.name<Algorithm>("algorithm");
  choice.geometry.threads = object.small_integer("threads", 32, kMaxThreads);
  if (choice.geometry.threads % 32 != 0) object.fail_at("threads", "multiples of 32");
  choice.geometry.cluster = object.small_integer("cluster", 1, 8);
  if ((choice.geometry.cluster & (choice.geometry.cluster - 1)) != 0) object.fail_at("cluster", "1, 2, 4, 8");
  choice.blocks = object.small_integer("blocks", 0, kMaxBlocks);
  return choice;
}

bool same_shape(const TuningEntry& a, const TuningEntry& b) {
  return a.pattern_class == b.pattern_class && a.dtype == b.dtype && a.hidden_size == b.hidden_size &&
         a.world_size == b.world_size;
}

TuningEntry entry_from(const Object& object) {
  object.check_keys({"choices", "class", "dtype", "hidden_size", "world_size"});
  TuningEntry entry;
  entry.pattern_class = object.name<PatternClass>("class");
  entry.dtype = object.name<DataType>("dtype");
  entry.hidden_size = object.small_integer("hidden_size", 1, kMaxHiddenSize);
  entry.world_size = object.small_integer("world_size", 1, kMaxWorldSize);
  std::int64_t tokens = 0;
  for (const Object& choice : object.objects("choices", 1)) {
    entry.choices.push_back(choice_from(choice, tokens));
    tokens = entry.choices.back().up_to_tokens;
  }
  return entry;
}

json document_of(const TuningEntry& entry) {
  json choices = json::array();
  for (const TuningChoice& choice : entry.choices) {
    choices.push_back({{"algorithm", to_string(choice.algorithm)},
                       {"blocks", choice.blocks},
                       {"cluster", choice.geometry.cluster},
                       {"threads", choice.geometry.threads},
                       {"up_to_tokens", choice.up_to_tokens}});
  }
  return {{"choices", std::move(choices)},
          {"class", to_string(entry.pattern_class)},
          {"dtype", to_string(entry.dtype)},
          {"hidden_size", entry.hidden_size},
          {"world_size", entry.world_size}};
}

}  // namespace

PatternClass pattern_class(Pattern pattern) noexcept {
  if (traits_of(pattern).quantizer != device::Quantizer::kNone) return PatternClass::kQuantised;
  return needs_whole_row(pattern) ? PatternClass::kNorm : PatternClass::kSum;
}

std::string_view to_string(PatternClass value) noexcept { return name_of(value); }

const TuningChoice& TuningEntry::at(std::int64_t tokens) const noexcept {
  const auto reaches = [&](const TuningChoice& choice) { return tokens <= choice.up_to_tokens; };
  const auto found = std::find_if(choices.begin(), choices.end(), reaches);
  return found == choices.end() ? choices.back() : *found;
}

TuningTable TuningTable::load(const std::filesystem::path& file) {
  return parse(read_deployment_file(file), fmt::format("tuning table {}", json_quoted(file.string())));
}

TuningTable TuningTable::parse(std::string_view text, std::string_view origin) {
  const json document = parse_untrusted_json(text, origin);
  const Object root(document, "", origin);
  root.check_keys({"device", "entries", "ranks_on_device", "schema", "sm_count"});
  (void)root.integer("schema", kSchema, kSchema);
  TuningTable table;
  table.device = root.text("device", kMaxDeviceName);
  table.sm_count = root.small_integer("sm_count", 1, kMaxSms);
  table.ranks_on_device = root.small_integer("ranks_on_device", 1, kMaxWorldSize);
  for (const Object& object : root.objects("entries", 0)) {
    TuningEntry entry = entry_from(object);
    if (std::any_of(table.entries.begin(), table.entries.end(),
                    [&](const TuningEntry& other) { return same_shape(other, entry); })) {
      object.fail_at("class", "each class once for one type, hidden size and world size");
    }
    table.entries.push_back(std::move(entry));
  }
  return table;
}

std::string TuningTable::to_json() const {
  json list = json::array();
  for (const TuningEntry& entry : entries) list.push_back(document_of(entry));
  const json document = {{"device", device},
                         {"entries", std::move(list)},
                         {"ranks_on_device", ranks_on_device},
                         {"schema", kSchema},
                         {"sm_count", sm_count}};
  return document.dump(-1, ' ', true, json::error_handler_t::replace);
}

bool TuningTable::applies_to(std::string_view device_name, const DeviceCaps& caps) const noexcept {
  return device == device_name && sm_count == caps.sm_count && ranks_on_device == caps.ranks_on_device;
}

const TuningEntry* TuningTable::find(const KernelSpec& shape) const noexcept {
  if (shape.op != Op::kAllReduce) return nullptr;  // nothing else is measured
  const PatternClass wanted = pattern_class(shape.pattern);
  for (const TuningEntry& entry : entries) {
    if (entry.pattern_class == wanted && entry.dtype == shape.dtype && entry.hidden_size == shape.hidden_size &&
        entry.world_size == shape.world_size) {
      return &entry;
    }
  }
  return nullptr;
}

}  // namespace commfuse::runtime
