#include "reference/case.hpp"

#include <fmt/format.h>

#include <cstring>

#include "reference/all_reduce.hpp"
#include "reference/extensions.hpp"
#include "reference/quantize.hpp"

namespace commfuse::reference {
namespace {

constexpr std::array<std::string_view, kTensorCount> kTensorNames = {
    "in",           "add_in",      "residual_in",      "gamma",        "gamma_before",  "scale_factor",
    "mixture_max",  "mixture_sum", "mixture",          "score_weight", "mixture_gamma", "out",
    "residual_out", "norm_out",    "partial_norm_out", "quant_out",    "scale_out"};

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
    case Pattern::kAddResidualRmsNormFp8Block:
      return Quantizer::kFp8Block;
    case Pattern::kResidualRmsNormFp8Token:
      return Quantizer::kFp8Token;
    case Pattern::kResidualRmsNormFp8Group:
      return Quantizer::kFp8Group;
    default:
      return std::nullopt;
  }
}

/// The sum is the result.
bool is_plain(Pattern pattern) { return pattern == Pattern::kAllReduce || pattern == Pattern::kReduceScatter; }

bool has_add(Pattern pattern) {
  return pattern == Pattern::kAddResidualRmsNorm || pattern == Pattern::kAddResidualRmsNormFp8Block;
}

bool has_residual(Pattern pattern) {
  return !is_plain(pattern) && pattern != Pattern::kRmsNorm && pattern != Pattern::kLatentNorm;
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
    case Pattern::kReduceScatter:
    case Pattern::kAddResidualRmsNormFp8Block:
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
  Builder(const KernelSpec& spec, const std::vector<std::int64_t>& rows_of_ranks, Values values, std::uint64_t seed,
          bool zero_padding)
      : spec_(spec), values_(values), seed_(seed), zero_padding_(zero_padding) {
    for (const std::int64_t count : rows_of_ranks) {
      result_.rows.push_back({tokens_, count});
      tokens_ += count;
    }
  }

  Case build() {
    result_.spec = spec_;
    result_.tokens = tokens_;
    result_.ranks.resize(static_cast<std::size_t>(spec_.world_size));
    for (int rank = 0; rank < spec_.world_size; ++rank) {
      result_.scale_strides.push_back((rows_written(rank) + 3) / 4 * 4);
    }
    problem_.world_size = spec_.world_size;
    problem_.tokens = tokens_;
    problem_.hidden = spec_.hidden_size;
    problem_.type = spec_.dtype;
    problem_.fp32_accumulate = spec_.fp32_accumulate;
    problem_.eps = result_.eps;
    const bool residual = has_residual(spec_.pattern);
    fill_problem(problem_, values_, seed_, residual);
    if (has_add(spec_.pattern)) {
      problem_.add = make_values(spec_.dtype, problem_.residual.size() / static_cast<std::size_t>(size_of(spec_.dtype)),
                                 values_, seed_ * 1000 + 102);
    }
    problem_.residual_scattered = residual && spec_.residual_scattered;
    const Format matrix = format_of(spec_.dtype);
    const auto columns = static_cast<std::size_t>(spec_.hidden_size);

    problem_.gamma.clear();
    problem_.gamma_type = spec_.gamma_dtype;
    problem_.weight_bias = spec_.weight_bias ? 1.0f : 0.0f;
    const bool mixture = spec_.pattern == Pattern::kAttnResCombine;
    const bool latent = spec_.pattern == Pattern::kLatentNorm;
    if (!is_plain(spec_.pattern) && !mixture && !latent) problem_.gamma = weights(columns, 1);
    if (spec_.pattern == Pattern::kResidualRmsPrePostNorm) problem_.pre_gamma = weights(columns, 2);
    const AllReduceResult reduced = all_reduce(problem_);

    for (int rank = 0; rank < spec_.world_size; ++rank) {
      set(rank, TensorId::kIn, problem_.inputs[static_cast<std::size_t>(rank)], matrix, columns);
      if (residual) {
        set(rank, TensorId::kResidualIn, scattered(problem_.residual, rank), matrix, columns);
        set(rank, TensorId::kResidualOut, scattered(reduced.residual_out, rank), matrix, columns);
      }
      if (!problem_.add.empty()) set(rank, TensorId::kAddIn, written(problem_.add, rank), matrix, columns);
    }
    if (is_plain(spec_.pattern)) set_written(TensorId::kOut, reduced.sum, matrix, columns);
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
    // Where it is optional, by the seed.
    const bool optional = scatters() && !is_plain(spec_.pattern) && seed_ / 2 % 2 == 0;
    if (writes_norm(spec_.pattern) || optional) set_written(TensorId::kNormOut, norm, matrix, columns);
    if (writes_partial_norm(spec_.pattern)) {
      for (int rank = 0; rank < spec_.world_size; ++rank) {
        set(rank, TensorId::kPartialNormOut, own_rows(norm, rank), matrix, columns);
      }
    }
    if (const auto quantizer = quantizer_of(spec_.pattern)) {
      for (int rank = 0; rank < spec_.world_size; ++rank) add_quantised(rank, written(norm, rank), *quantizer);
    }
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
    return slice_rows(matrix, problem_.row_bytes(), result_.rows[static_cast<std::size_t>(rank)]);
  }
  /// Whether ranks write their own rows only.
  bool scatters() const { return spec_.op == Op::kReduceScatter; }
  std::int64_t rows_written(int rank) const {
    return scatters() ? result_.rows[static_cast<std::size_t>(rank)].count : tokens_;
  }
  Bytes written(const Bytes& matrix, int rank) const { return scatters() ? own_rows(matrix, rank) : matrix; }
  void set_written(TensorId id, const Bytes& matrix, Format format, std::size_t columns) {
    for (int rank = 0; rank < spec_.world_size; ++rank) set(rank, id, written(matrix, rank), format, columns);
  }
  Bytes scattered(const Bytes& matrix, int rank) const {
    return spec_.residual_scattered ? own_rows(matrix, rank) : written(matrix, rank);
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

  void add_quantised(int rank, const Bytes& norm, Quantizer quantizer) {
    const std::int64_t stride = result_.scale_strides[static_cast<std::size_t>(rank)];
    Quantization how;
    how.quantizer = quantizer;
    how.group = spec_.group_size;
    how.layout = static_cast<ScaleLayout>(spec_.quant_layout);
    how.scale_stride = stride;
    how.untouched = kPoison;
    how.zero_padding = zero_padding_;
    how.scale_factor = quantizer == Quantizer::kFp4 ? 448.0f * 6.0f / 5.0f : 0.0123f;
    const Quantized quantised = quantize(norm, spec_.dtype, rows_written(rank), spec_.hidden_size, how);
    const bool fp4 = quantizer == Quantizer::kFp4;
    set(rank, TensorId::kQuantOut, quantised.values, fp4 ? Format::kE2m1Pair : Format::kE4m3,
        static_cast<std::size_t>(spec_.hidden_size / (fp4 ? 2 : 1)));
    if (fp4 || quantizer == Quantizer::kFp8Tensor) {
      set(rank, TensorId::kScaleFactor, bytes_of({how.scale_factor}), Format::kFp32, 1);
    }
    if (quantizer == Quantizer::kFp8Tensor) return;
    const bool floats = quantizer == Quantizer::kFp8Block || quantizer == Quantizer::kFp8Token;
    set(rank, TensorId::kScaleOut, quantised.scales, floats ? Format::kWord : Format::kByte,
        static_cast<std::size_t>(std::max<std::int64_t>(stride, 1)));
  }

  KernelSpec spec_;
  std::int64_t tokens_ = 0;
  Values values_;
  std::uint64_t seed_;
  bool zero_padding_;
  AllReduceProblem problem_;
  Case result_;
};

}  // namespace

std::string_view to_string(TensorId id) { return kTensorNames[static_cast<std::size_t>(id)]; }

std::vector<std::int64_t> balanced_rows(std::int64_t tokens, int world_size) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < world_size; ++rank) rows.push_back(rows_of_rank(tokens, world_size, rank).count);
  return rows;
}

Case make_case(const KernelSpec& spec, std::int64_t tokens, Values values, std::uint64_t seed, bool zero_padding) {
  return make_case(spec, balanced_rows(tokens, spec.world_size), values, seed, zero_padding);
}

Case make_case(const KernelSpec& spec, const std::vector<std::int64_t>& rows_of_ranks, Values values,
               std::uint64_t seed, bool zero_padding) {
  return Builder(spec, rows_of_ranks, values, seed, zero_padding).build();
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
