#include "commfuse/spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commfuse/error.hpp"
#include "runtime/pattern.hpp"
#include "runtime/spec_json.hpp"
#include "runtime/spec_names.hpp"

namespace commfuse {
namespace {

using nlohmann::json;

constexpr int kVectorBytes = 16;
constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMinArch = 80;
constexpr int kMaxArchDigits = 3;

template <typename Enum>
std::string_view name_or_unknown(Enum value) noexcept {
  const std::string_view name = runtime::name_of(value);
  return name.empty() ? std::string_view{"unknown"} : name;
}

/// The compute capability of "sm_90a", times ten; nothing for a text that is no target. One target has one spelling, so
/// no leading zeros.
std::optional<int> arch_number(std::string_view arch) noexcept {
  if (!arch.starts_with("sm_")) return std::nullopt;
  arch.remove_prefix(3);
  if (arch.ends_with('a') || arch.ends_with('f')) arch.remove_suffix(1);
  if (arch.empty() || arch.size() > kMaxArchDigits || arch.front() == '0') return std::nullopt;
  int number = 0;
  for (const char c : arch) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + (c - '0');
  }
  return number;
}

[[noreturn]] void refuse(std::string_view field, const std::string& found, std::string_view allowed) {
  throw Error(Code::kInvalidArgument, fmt::format("kernel spec: {} {} is not allowed", field, found),
              fmt::format("allowed: {}", allowed));
}

void require(bool good, std::string_view field, int found, std::string_view allowed) {
  if (!good) refuse(field, std::to_string(found), allowed);
}

template <typename Enum>
void require_known(Enum value, std::string_view field) {
  if (!runtime::name_of(value).empty()) return;
  std::string allowed;
  for (const auto& entry : runtime::kNames<Enum>) {
    allowed += (allowed.empty() ? "" : ", ");
    allowed += entry.name;
  }
  refuse(field, std::to_string(static_cast<int>(value)), allowed);
}

/// An option that the kernel does not have must not be set: equal machine code has one spec.
void require_normalised(const KernelSpec& spec) {
  if (spec == spec.normalised()) return;
  const std::string owner =
      spec.op != Op::kCallCheck ? fmt::format("pattern {}", to_string(spec.pattern)) : std::string(to_string(spec.op));
  throw Error(Code::kInvalidArgument, fmt::format("kernel spec: an option that {} does not have is set", owner),
              fmt::format("found {}", spec.to_json()), fmt::format("use {}", spec.normalised().to_json()));
}

int require_arch(const KernelSpec& spec) {
  const std::optional<int> number = arch_number(spec.arch);
  if (!number || *number < kMinArch) {
    refuse("arch", fmt::format("'{}'", spec.arch.substr(0, 32)),
           "sm_80 and later, as NVRTC names them (sm_90a, sm_100f)");
  }
  return *number;
}

template <typename Enum>
Enum enum_at(const json& object, const char* key) {
  const std::string& name = object.at(key).get_ref<const std::string&>();
  const std::optional<Enum> value = runtime::value_of<Enum>(name);
  if (!value) {
    throw Error(Code::kInvalidInput, "cannot read a kernel spec",
                fmt::format("/{}: this build does not know '{}'", key, name.substr(0, 64)));
  }
  return *value;
}

int int_at(const json& object, const char* key) {
  const json& value = object.at(key);
  // The range keeps the narrowing below exact; validate() does the rest.
  if (!value.is_number_integer() || value < 0 || value > (1 << 30)) {
    throw Error(Code::kInvalidInput, "cannot read a kernel spec",
                fmt::format("/{} is not a whole number in range", key));
  }
  return value.get<int>();
}

}  // namespace

std::string_view to_string(Op op) noexcept { return name_or_unknown(op); }
std::string_view to_string(Pattern pattern) noexcept { return name_or_unknown(pattern); }
std::string_view to_string(Algorithm algorithm) noexcept { return name_or_unknown(algorithm); }
std::string_view to_string(DataType dtype) noexcept { return name_or_unknown(dtype); }
std::string_view to_string(QuantLayout layout) noexcept { return name_or_unknown(layout); }

std::span<const Pattern> patterns(Op op) noexcept {
  static constexpr auto kPlain = []<std::size_t kCount>(const std::array<runtime::CodedPattern, kCount>& coded) {
    std::array<Pattern, kCount> plain{};
    for (std::size_t i = 0; i < kCount; ++i) plain[i] = coded[i].pattern;
    return plain;
  };
  static constexpr auto kAllReduce = kPlain(runtime::kAllReducePatterns);
  static constexpr auto kReduceScatter = kPlain(runtime::kReduceScatterPatterns);
  static constexpr auto kAllGather = kPlain(runtime::kAllGatherPatterns);
  switch (op) {
    case Op::kAllReduce:
      return kAllReduce;
    case Op::kReduceScatter:
      return kReduceScatter;
    case Op::kAllGather:
      return kAllGather;
    case Op::kCallCheck:
      break;
  }
  return {};
}

int pattern_code(Op op, Pattern pattern) noexcept {
  for (const runtime::CodedPattern& coded : runtime::coded_patterns(op)) {
    if (coded.pattern == pattern) return coded.code;
  }
  return -1;
}

std::optional<Pattern> pattern_of_code(Op op, int code) noexcept {
  for (const runtime::CodedPattern& coded : runtime::coded_patterns(op)) {
    if (coded.code == code) return coded.pattern;
  }
  return std::nullopt;
}

int size_of(DataType dtype) noexcept { return dtype == DataType::kFp32 ? 4 : 2; }

KernelSpec KernelSpec::call_check(int world_size, std::string arch) {
  KernelSpec spec;
  spec.op = Op::kCallCheck;
  spec.world_size = world_size;
  spec.arch = std::move(arch);
  return spec.normalised();
}

std::string KernelSpec::name() const {
  if (op == Op::kCallCheck) return fmt::format("{}_n{}", to_string(op), world_size);
  const std::string_view op_name = to_string(op);
  const std::string_view pattern_name = to_string(pattern);
  // "all_reduce_all_reduce" would say nothing more than "all_reduce".
  const std::string what = op_name == pattern_name ? std::string(op_name) : fmt::format("{}_{}", op_name, pattern_name);
  const std::string_view sum_type = fp32_accumulate ? "fp32" : to_string(dtype);
  const KernelSpec plain = normalised();
  std::string options;
  if (plain.gamma_dtype != dtype) options += fmt::format("_{}gamma", to_string(plain.gamma_dtype));
  if (plain.weight_bias) options += "_bias1";
  if (plain.residual_scattered) options += "_scattered";
  if (plain.quant_layout != QuantLayout::kSwizzled128x4) options += fmt::format("_{}", to_string(plain.quant_layout));
  if (plain.group_size != 0) options += fmt::format("_g{}", plain.group_size);
  if (plain.q_lora_rank != 0) options += fmt::format("_q{}_kv{}", plain.q_lora_rank, plain.kv_lora_rank);
  if (plain.latent_width != 0) options += fmt::format("_l{}", plain.latent_width);
  return fmt::format("{}_{}_{}_n{}_h{}_{}acc{}_t{}_c{}", what, to_string(algorithm), to_string(dtype), world_size,
                     hidden_size, sum_type, options, threads, cluster);
}

KernelSpec KernelSpec::normalised() const {
  if (op == Op::kCallCheck) {
    KernelSpec spec;
    spec.op = op;
    spec.world_size = world_size;
    spec.threads = kWarp;
    spec.arch = arch;
    return spec;
  }
  const runtime::PatternTraits traits = runtime::traits_of(pattern);
  const KernelSpec defaults;
  KernelSpec spec = *this;
  if (dtype == DataType::kFp32 || op == Op::kAllGather) spec.fp32_accumulate = true;
  if (runtime::algorithms_of(op).size() == 1) spec.algorithm = runtime::algorithms_of(op).front();
  // The mixture's weights are of the activation type, as the models that have one store them.
  const bool plain_weights = traits.norm == device::Norm::kNone || traits.norm == device::Norm::kAttentionResidual;
  if (plain_weights || dtype == DataType::kFp32) spec.gamma_dtype = dtype;
  if (plain_weights) spec.weight_bias = defaults.weight_bias;
  // A scattered residual is part of the sum; a norm of the sum alone does not go with it.
  // A reduce-scatter has own rows only.
  if (!traits.residual || traits.norm == device::Norm::kPreAndPost || op != Op::kAllReduce) {
    spec.residual_scattered = defaults.residual_scattered;
  }
  if (traits.quantizer != device::Quantizer::kFp4) spec.quant_layout = defaults.quant_layout;
  if (traits.quantizer != device::Quantizer::kFp8Group) spec.group_size = defaults.group_size;
  if (traits.norm != device::Norm::kLatent) spec.latent_width = defaults.latent_width;
  if (traits.norm != device::Norm::kDual) {
    spec.q_lora_rank = defaults.q_lora_rank;
    spec.kv_lora_rank = defaults.kv_lora_rank;
  }
  return spec;
}

std::string KernelSpec::to_json() const {
  // nlohmann::json keeps an object's keys sorted.
  const json object = {
      {"algorithm", to_string(algorithm)},
      {"arch", arch},
      {"cluster", cluster},
      {"dtype", to_string(dtype)},
      {"fp32_accumulate", fp32_accumulate},
      {"gamma_dtype", to_string(gamma_dtype)},
      {"group_size", group_size},
      {"hidden_size", hidden_size},
      {"kv_lora_rank", kv_lora_rank},
      {"latent_width", latent_width},
      {"op", to_string(op)},
      {"pattern", to_string(pattern)},
      {"q_lora_rank", q_lora_rank},
      {"quant_layout", to_string(quant_layout)},
      {"residual_scattered", residual_scattered},
      {"threads", threads},
      {"weight_bias", weight_bias},
      {"world_size", world_size},
  };
  return object.dump(-1, ' ', true, json::error_handler_t::replace);
}

void KernelSpec::validate() const {
  require_known(op, "op");
  require_known(pattern, "pattern");
  if (op != Op::kCallCheck && pattern_code(op, pattern) < 0) {
    refuse("pattern", std::string(to_string(pattern)), runtime::patterns_text(op));
  }
  require_known(algorithm, "algorithm");
  require_known(dtype, "dtype");
  require(world_size >= 1 && world_size <= kMaxWorldSize, "world_size", world_size, "1 to 16");
  if (op == Op::kCallCheck) {
    require_normalised(*this);
    (void)require_arch(*this);
    return;
  }
  require(hidden_size >= 1 && hidden_size <= kMaxHiddenSize, "hidden_size", hidden_size, "1 to 65536");
  const int multiple = kVectorBytes / size_of(dtype);
  if (hidden_size % multiple != 0) {
    refuse("hidden_size", std::to_string(hidden_size),
           fmt::format("multiples of {} for {} (rows of whole 16-byte vectors)", multiple, to_string(dtype)));
  }
  if (dtype == DataType::kFp32 && !fp32_accumulate) {
    refuse("fp32_accumulate", "false", "true for fp32, whose sums have no other form");
  }
  const runtime::PatternTraits traits = runtime::traits_of(pattern);
  require_known(gamma_dtype, "gamma_dtype");
  require_known(quant_layout, "quant_layout");
  if (gamma_dtype != dtype && gamma_dtype != DataType::kFp32) {
    refuse("gamma_dtype", std::string(to_string(gamma_dtype)), fmt::format("{} or fp32", to_string(dtype)));
  }
  if (traits.quantizer != device::Quantizer::kNone) {
    if (dtype == DataType::kFp32) refuse("dtype", "fp32", fmt::format("fp16, bf16 for {}", to_string(pattern)));
    if (traits.quantizer == device::Quantizer::kFp8Group) {
      require(group_size >= 8 && group_size <= 256 && (group_size & (group_size - 1)) == 0, "group_size", group_size,
              "8, 16, 32, 64, 128, 256");
    }
    const int columns = runtime::scale_columns(*this);
    if (runtime::quantized_columns(*this) % columns != 0) {
      refuse(traits.norm == device::Norm::kDual ? "q_lora_rank" : "hidden_size",
             std::to_string(runtime::quantized_columns(*this)),
             fmt::format("multiples of {} for {}, whose scales cover so many columns", columns, to_string(pattern)));
    }
  }
  if (traits.norm == device::Norm::kLatent) {
    require(latent_width >= multiple && latent_width <= hidden_size && latent_width % multiple == 0, "latent_width",
            latent_width, fmt::format("multiples of {} up to hidden_size", multiple));
  }
  if (traits.norm == device::Norm::kDual) {
    require(q_lora_rank >= multiple && q_lora_rank <= hidden_size && q_lora_rank % multiple == 0, "q_lora_rank",
            q_lora_rank, fmt::format("multiples of {} up to hidden_size", multiple));
    require(kv_lora_rank >= multiple && kv_lora_rank <= hidden_size - q_lora_rank && kv_lora_rank % multiple == 0,
            "kv_lora_rank", kv_lora_rank, fmt::format("multiples of {} up to hidden_size - q_lora_rank", multiple));
  }
  require_normalised(*this);
  require(threads >= kWarp && threads <= kMaxThreads && threads % kWarp == 0, "threads", threads,
          "multiples of 32 up to 1024");
  require(cluster == 1 || cluster == 2 || cluster == 4 || cluster == 8, "cluster", cluster, "1, 2, 4 or 8");
  const int number = require_arch(*this);
  if (cluster > 1 && number < 90) refuse("cluster", std::to_string(cluster), "1 before sm_90");
}

std::string runtime::patterns_text(Op op) {
  std::vector<std::string_view> names;
  for (const Pattern pattern : patterns(op)) names.push_back(to_string(pattern));
  return fmt::format("the patterns of {}: {}", to_string(op), fmt::join(names, ", "));
}

KernelSpec runtime::spec_from_json(std::string_view text) {
  try {
    const json object = json::parse(text);
    KernelSpec spec;
    spec.op = enum_at<Op>(object, "op");
    spec.pattern = enum_at<Pattern>(object, "pattern");
    spec.algorithm = enum_at<Algorithm>(object, "algorithm");
    spec.world_size = int_at(object, "world_size");
    spec.hidden_size = int_at(object, "hidden_size");
    spec.dtype = enum_at<DataType>(object, "dtype");
    spec.fp32_accumulate = object.at("fp32_accumulate").get<bool>();
    spec.gamma_dtype = enum_at<DataType>(object, "gamma_dtype");
    spec.weight_bias = object.at("weight_bias").get<bool>();
    spec.residual_scattered = object.at("residual_scattered").get<bool>();
    spec.quant_layout = enum_at<QuantLayout>(object, "quant_layout");
    spec.group_size = int_at(object, "group_size");
    spec.latent_width = int_at(object, "latent_width");
    spec.q_lora_rank = int_at(object, "q_lora_rank");
    spec.kv_lora_rank = int_at(object, "kv_lora_rank");
    spec.threads = int_at(object, "threads");
    spec.cluster = int_at(object, "cluster");
    spec.arch = object.at("arch").get<std::string>();
    spec.validate();
    if (spec.to_json() != text) {
      throw Error(Code::kInvalidInput, "cannot read a kernel spec", "the text is not in canonical form");
    }
    return spec;
  } catch (const json::exception& error) {
    throw Error(Code::kInvalidInput, "cannot read a kernel spec", error.what());
  } catch (const Error& error) {
    if (error.code() == Code::kInvalidInput) throw;
    throw Error(Code::kInvalidInput, "cannot read a kernel spec", error.what());
  }
}

}  // namespace commfuse
