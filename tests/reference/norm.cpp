#include "reference/norm.hpp"

#include <array>
#include <cmath>
#include <stdexcept>

namespace commfuse::reference {
namespace {

constexpr std::size_t kLanes = 32;
using Lanes = std::array<float, kLanes>;

float butterfly(Lanes lanes) {
  for (const std::size_t mask : {16u, 8u, 4u, 2u, 1u}) {
    Lanes next{};
    for (std::size_t l = 0; l < kLanes; ++l) next[l] = lanes[l] + lanes[l ^ mask];
    lanes = next;
  }
  return lanes[0];
}

}  // namespace

float canonical_dot(std::span<const float> a, std::span<const float> b, int vector_elements) {
  const auto width = static_cast<std::size_t>(vector_elements);
  if (a.size() != b.size() || a.size() % width != 0) throw std::invalid_argument("reference: ragged row");
  const std::size_t vectors = a.size() / width;
  Lanes totals{};
  for (std::size_t group = 0; group * kLanes < vectors; ++group) {
    Lanes lanes{};
    for (std::size_t l = 0; l < kLanes && group * kLanes + l < vectors; ++l) {
      const std::size_t first = (group * kLanes + l) * width;
      for (std::size_t i = first; i < first + width; ++i) lanes[l] = std::fma(a[i], b[i], lanes[l]);
    }
    totals[group % kLanes] = totals[group % kLanes] + butterfly(lanes);
  }
  return butterfly(totals);
}

float reciprocal_rms(float sum_of_squares, std::size_t length, float eps) {
  const float inverse_length = 1.0f / static_cast<float>(length);
  const float mean = sum_of_squares * inverse_length;
  return 1.0f / std::sqrt(mean + eps);
}

std::vector<float> rms_norm(std::span<const float> row, std::span<const float> weight, float eps, DataType type) {
  const float rms = reciprocal_rms(canonical_dot(row, row, 16 / element_bytes(type)), row.size(), eps);
  std::vector<float> result(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float scaled = row[i] * rms;
    result[i] = round_to(type, scaled * weight[i]);
  }
  return result;
}

std::vector<float> norm_weight(const Bytes& gamma, DataType gamma_type, std::size_t length, float weight_bias) {
  std::vector<float> weight = widen(gamma, gamma_type, 0, length);
  if (weight_bias != 0.0f) {
    for (float& w : weight) w = weight_bias + w;
  }
  return weight;
}

}  // namespace commfuse::reference
