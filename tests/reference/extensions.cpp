#include "reference/extensions.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "reference/formats.hpp"
#include "reference/norm.hpp"

namespace commfuse::reference {

Bytes latent_norm(const Bytes& sum, DataType type, std::int64_t rows, int columns, int latent_width, const Bytes& gamma,
                  DataType gamma_type, float eps, float weight_bias) {
  if (latent_width < 1 || latent_width > columns || latent_width * element_bytes(type) % 16 != 0) {
    throw std::invalid_argument("reference: the latent part is not a whole number of vectors");
  }
  const auto width = static_cast<std::size_t>(latent_width);
  const std::vector<float> weight = norm_weight(gamma, gamma_type, width, weight_bias);
  Bytes out = sum;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t first = static_cast<std::size_t>(row) * static_cast<std::size_t>(columns);
    narrow(rms_norm(widen(sum, type, first, width), weight, eps, type), type, out, first);
  }
  return out;
}

Bytes part_norm(const Bytes& matrix, DataType type, std::int64_t rows, int columns, int first, int width,
                const Bytes& gamma, DataType gamma_type, float eps, float weight_bias) {
  const auto begin = static_cast<std::size_t>(first);
  const auto count = static_cast<std::size_t>(width);
  const auto row_columns = static_cast<std::size_t>(columns);
  const std::vector<float> weight = norm_weight(gamma, gamma_type, count, weight_bias);
  Bytes out(static_cast<std::size_t>(rows) * count * static_cast<std::size_t>(element_bytes(type)));
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    const std::vector<float> part = widen(matrix, type, row * row_columns + begin, count);
    std::vector<float> alone(row_columns, 0.0f);
    std::copy(part.begin(), part.end(), alone.begin() + first);
    const float rms = reciprocal_rms(canonical_dot(alone, alone, 16 / element_bytes(type)), count, eps);
    std::vector<float> result(count);
    for (std::size_t i = 0; i < count; ++i) {
      const float scaled = part[i] * rms;
      result[i] = scaled * weight[i];
    }
    narrow(result, type, out, row * count);
  }
  return out;
}

float canonical_exp(float x) {
  if (std::isnan(x)) return float_of(kCanonicalNan);
  if (x < -104.0f) return 0.0f;
  // exp(x) = 2^n * exp(r), n the nearest whole number to x / ln 2, |r| <= ln 2 / 2.
  const float n = std::nearbyint(x * 0x1.715476p+0f);
  float r = std::fma(n, -0x1.62e400p-1f, x);  // the high part of ln 2 has zeros at its end: this product is exact
  r = std::fma(n, -0x1.7f7d1cp-20f, r);
  float p = 1.0f / 5040.0f;
  for (const float coefficient : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
    p = std::fma(p, r, coefficient);
  }
  // Two factors, as one may be below the smallest normal number; only the last product rounds.
  const int whole = static_cast<int>(n);
  const int part = whole / 2;
  return p * std::ldexp(1.0f, part) * std::ldexp(1.0f, whole - part);
}

Bytes attn_res_combine(const Bytes& y, DataType type, std::int64_t rows, int columns, const AttentionResidual& state) {
  const auto width = static_cast<std::size_t>(columns);
  const int vector_elements = 16 / element_bytes(type);
  std::vector<float> direction = widen(state.gamma, type, 0, width);
  const std::vector<float> residual_weight = widen(state.residual_weight, type, 0, width);
  for (std::size_t i = 0; i < width; ++i) direction[i] = direction[i] * residual_weight[i];
  std::vector<float> out_weight;
  if (!state.out_weight.empty()) out_weight = widen(state.out_weight, type, 0, width);

  Bytes out(y.size());
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    const std::vector<float> p = widen(y, type, row * width, width);
    const float rms = reciprocal_rms(canonical_dot(p, p, vector_elements), width, state.eps);
    const float logit = canonical_dot(p, direction, vector_elements) * rms;
    const float before = state.maximum[row];
    const float top = std::isnan(logit) ? before : std::isnan(before) ? logit : std::max(before, logit);
    const float c = canonical_exp(before - top);
    const float w = canonical_exp(logit - top);
    const float below = std::fma(state.denominator[row], c, w);
    std::vector<float> mix(width);
    for (std::size_t i = 0; i < width; ++i) {
      const float old = state.accumulator[row * width + i] * c;
      mix[i] = round_to(type, std::fma(w, p[i], old) / below);
    }
    if (!out_weight.empty()) mix = rms_norm(mix, out_weight, state.eps, type);
    narrow(mix, type, out, row * width);
  }
  return out;
}

}  // namespace commfuse::reference
