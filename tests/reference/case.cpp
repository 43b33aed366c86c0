#include "reference/case.hpp"

#include <fmt/format.h>

#include <cstring>

#include "reference/all_reduce.hpp"
#include "reference/extensions.hpp"
#include "reference/quantize.hpp"

namespace commfuse::reference {
namespace {

constexpr std::array<std::string_view, kTensorCount> kTensorNames = {
    "in",          "residual_in",      "gamma",        "gamma_before",  "scale_factor", "mixture_max",
    "mixture_sum", "mixture",          "score_weight", "mixture_gamma", "out",          "residual_out",
    "norm_out",    "partial_norm_out", "quant_out",    "scale_out"};

std::optional<Quantizer> quantizer_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::kResidualRmsNormFp8:
    case Pattern::kResidualRmsNormOutFp8:
      return Quantizer::kFp8Tensor;
    case Pattern::kResidualRmsNormFp4:
    case Pattern::kResidualRmsNormOutFp4:
      return Quantizer::kFp4;
    case Pattern::kResidualRmsNormFp8Block:
    case Pattern::kResidualRmsNormPartialOutFp8Block:
      return Quantizer::kFp8Block;
    case Pattern::kResidualRmsNormFp8Token:
      return Quantizer::kFp8Token;
    case Pattern::kResidualRmsNormFp8Group:
      return Quantizer::kFp8Group;
    default:
      return std::nullopt;
  }
}

bool has_residual(Pattern pattern) {
  return pattern != Pattern::kAllReduce && pattern != Pattern::kRmsNorm && pattern != Pattern::kLatentNorm;
}

bool writes_norm(Pattern pattern) {
  switch (pattern) {
    case Pattern::kAllReduce:
    case Pattern::kLatentNorm:
    case Pattern::kResidualRmsNormFp8:
    case Pattern::kResidualRmsNormFp4:
    case Pattern::kResidualRmsNormFp8Block:
    case Pattern::kResidualRmsNormPartialOutFp8Block:
    case Pattern::kResidualRmsNormPartialOut:
      return false;
    default:
      return true;
  }
}

bool writes_partial_norm(Pattern pattern) {
  return pattern == Pattern::kResidualRmsNormPartialOut || pattern == Pattern::kResidualRmsNormPartialOutFp8Block;
}

Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class Builder {
 public:
  Builder(const KernelSpec& spec, std::int64_t tokens, Values values, std::uint64_t seed, bool zero_padding)
      : spec_(spec), tokens_(tokens), values_(values), seed_(seed), zero_padding_(zero_padding) {}

  Case build() {
    result_.spec = spec_;
    result_.tokens = tokens_;
    result_.ranks.resize(static_cast<std::size_t>(spec_.world_size));
    result_.scale_stride = (tokens_ + 3) / 4 * 4;
    problem_.world_size = spec_.world_size;
    problem_.tokens = tokens_;
    problem_.hidden = spec_.hidden_size;
    problem_.type = spec_.dtype;
    problem_.fp32_accumulate = spec_.fp32_accumulate;
    problem_.eps = result_.eps;
    const bool residual = has_residual(spec_.pattern);
    fill_problem(problem_, values_, seed_, residual);
    problem_.residual_scattered = residual && spec_.residual_scattered;
    const Format matrix = format_of(spec_.dtype);
    const auto columns = static_cast<std::size_t>(spec_.hidden_size);

    problem_.gamma.clear();
    problem_.gamma_type = spec_.gamma_dtype;
    problem_.weight_bias = spec_.weight_bias ? 1.0f : 0.0f;
    const bool mixture = spec_.pattern == Pattern::kAttnResCombine;
    const bool latent = spec_.pattern == Pattern::kLatentNorm;
    if (spec_.pattern != Pattern::kAllReduce && !mixture && !latent) problem_.gamma = weights(columns, 1);
    if (spec_.pattern == Pattern::kResidualRmsPrePostNorm) problem_.pre_gamma = weights(columns, 2);
    const AllReduceResult reduced = all_reduce(problem_);

    for (int rank = 0; rank < spec_.world_size; ++rank) {
      set(rank, TensorId::kIn, problem_.inputs[static_cast<std::size_t>(rank)], matrix, columns);
      if (residual) {
        set(rank, TensorId::kResidualIn, scattered(problem_.residual, rank), matrix, columns);
        set(rank, TensorId::kResidualOut, scattered(reduced.residual_out, rank), matrix, columns);
      }
    }
    if (spec_.pattern == Pattern::kAllReduce) set_all(TensorId::kOut, reduced.sum, matrix, columns);
    if (!problem_.gamma.empty()) set_all(TensorId::kGamma, problem_.gamma, format_of(spec_.gamma_dtype), columns);
    if (!problem_.pre_gamma.empty()) {
      set_all(TensorId::kGammaBefore, problem_.pre_gamma, format_of(spec_.gamma_dtype), columns);
    }
    Bytes norm = reduced.norm_out;
    if (latent) {
      const Bytes gamma = weights(static_cast<std::size_t>(spec_.latent_width), 1);
      set_all(TensorId::kGamma, gamma, format_of(spec_.gamma_dtype), columns);
      set_all(TensorId::kOut,
              latent_norm(reduced.sum, spec_.dtype, tokens_, spec_.hidden_size, spec_.latent_width, gamma,
                          spec_.gamma_dtype, result_.eps, problem_.weight_bias),
              matrix, columns);
    }
    if (mixture) norm = add_mixture(reduced.residual_out);
    if (writes_norm(spec_.pattern)) set_all(TensorId::kNormOut, norm, matrix, columns);
    if (writes_partial_norm(spec_.pattern)) {
      for (int rank = 0; rank < spec_.world_size; ++rank) {
        set(rank, TensorId::kPartialNormOut, own_rows(norm, rank), matrix, columns);
      }
    }
    if (const auto quantizer = quantizer_of(spec_.pattern)) add_quantised(norm, *quantizer);
    return std::move(result_);
  }

 private:
  void set(int rank, TensorId id, Bytes bytes, Format format, std::size_t columns) {
    result_.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)] = {true, std::move(bytes), format,
                                                                                   columns};
  }
  void set_all(TensorId id, const Bytes& bytes, Format format, std::size_t columns) {
    for (int rank = 0; rank < spec_.world_size; ++rank) set(rank, id, bytes, format, columns);
  }
  Bytes own_rows(const Bytes& matrix, int rank) const {
    return slice_rows(matrix, problem_.row_bytes(), rows_of_rank(tokens_, spec_.world_size, rank));
  }
  Bytes scattered(const Bytes& matrix, int rank) const {
    return spec_.residual_scattered ? own_rows(matrix, rank) : matrix;
  }
  /// Around 1, or around 0 where 1 is added; exactly that for Values::kMinusOnes.
  Bytes weights(std::size_t count, std::uint64_t salt) const {
    Random random(seed_ * 977 + salt);
    const float spread = values_ == Values::kMinusOnes ? 0.0f : 0.25f;
    std::vector<float> values(count);
    for (float& value : values) value = (spec_.weight_bias ? 0.0f : 1.0f) + spread * random.normal();
    Bytes bytes(count * static_cast<std::size_t>(element_bytes(spec_.gamma_dtype)));
    narrow(values, spec_.gamma_dtype, bytes, 0);
    return bytes;
  }

  Bytes add_mixture(const Bytes& y) {
    const auto columns = static_cast<std::size_t>(spec_.hidden_size);
    const auto rows = static_cast<std::size_t>(tokens_);
    Random random(seed_ + 31);
    AttentionResidual state;
    for (std::size_t i = 0; i < rows; ++i) {
      state.maximum.push_back(random.normal());
      state.denominator.push_back(1.0f + random.normal() * random.normal());
    }
    for (std::size_t i = 0; i < rows * columns; ++i) state.accumulator.push_back(random.normal());
    state.gamma = weights(columns, 1);
    state.residual_weight = weights(columns, 3);
    // Every other seed without the norm of the mixture.
    if (seed_ % 2 == 0) state.out_weight = weights(columns, 4);
    state.eps = result_.eps;
    const Format matrix = format_of(spec_.dtype);
    set_all(TensorId::kGamma, state.gamma, matrix, columns);
    set_all(TensorId::kScoreWeight, state.residual_weight, matrix, columns);
    if (!state.out_weight.empty()) set_all(TensorId::kMixtureGamma, state.out_weight, matrix, columns);
    set_all(TensorId::kMixtureMax, bytes_of(state.maximum), Format::kFp32, 1);
    set_all(TensorId::kMixtureSum, bytes_of(state.denominator), Format::kFp32, 1);
    set_all(TensorId::kMixture, bytes_of(state.accumulator), Format::kFp32, columns);
    return attn_res_combine(y, spec_.dtype, tokens_, spec_.hidden_size, state);
  }

  void add_quantised(const Bytes& norm, Quantizer quantizer) {
    Quantization how;
    how.quantizer = quantizer;
    how.group = spec_.group_size;
    how.layout = static_cast<ScaleLayout>(spec_.quant_layout);
    how.scale_stride = result_.scale_stride;
    how.untouched = kPoison;
    how.zero_padding = zero_padding_;
    how.scale_factor = quantizer == Quantizer::kFp4 ? 448.0f * 6.0f / 5.0f : 0.0123f;
    const Quantized quantised = quantize(norm, spec_.dtype, tokens_, spec_.hidden_size, how);
    const bool fp4 = quantizer == Quantizer::kFp4;
    set_all(TensorId::kQuantOut, quantised.values, fp4 ? Format::kE2m1Pair : Format::kE4m3,
            static_cast<std::size_t>(spec_.hidden_size / (fp4 ? 2 : 1)));
    if (fp4 || quantizer == Quantizer::kFp8Tensor) {
      set_all(TensorId::kScaleFactor, bytes_of({how.scale_factor}), Format::kFp32, 1);
    }
    if (quantizer == Quantizer::kFp8Tensor) return;
    const bool floats = quantizer == Quantizer::kFp8Block || quantizer == Quantizer::kFp8Token;
    set_all(TensorId::kScaleOut, quantised.scales, floats ? Format::kWord : Format::kByte,
            static_cast<std::size_t>(std::max<std::int64_t>(result_.scale_stride, 1)));
  }

  KernelSpec spec_;
  std::int64_t tokens_;
  Values values_;
  std::uint64_t seed_;
  bool zero_padding_;
  AllReduceProblem problem_;
  Case result_;
};

}  // namespace

std::string_view to_string(TensorId id) { return kTensorNames[static_cast<std::size_t>(id)]; }

Case make_case(const KernelSpec& spec, std::int64_t tokens, Values values, std::uint64_t seed, bool zero_padding) {
  return Builder(spec, tokens, values, seed, zero_padding).build();
}

std::string check_output(const Case& test, int rank, TensorId id, const Bytes& actual) {
  const CaseTensor& tensor = test.tensor(rank, id);
  CompareOptions options;
  options.columns = tensor.columns;
  options.any_nan_equal = true;
  const std::string report =
      compare(fmt::format("rank {} {}", rank, to_string(id)), tensor.bytes, actual, tensor.format, options);
  return report.empty() ? report : fmt::format("{} with {} tokens: {}", test.spec.name(), test.tokens, report);
}

}  // namespace commfuse::reference
