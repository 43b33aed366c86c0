#include "reference/estimate.hpp"

#include <cmath>

namespace commfuse::reference {
namespace {

void normalise(std::vector<double>& row, const std::vector<float>& gamma, double weight_bias, double eps) {
  double squares = 0;
  for (const double v : row) squares += v * v;
  const double rms = 1.0 / std::sqrt(squares / static_cast<double>(row.size()) + eps);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] *= rms * (weight_bias + static_cast<double>(gamma[i]));
}

void append(std::vector<double>& matrix, const std::vector<double>& row) {
  matrix.insert(matrix.end(), row.begin(), row.end());
}

}  // namespace

AllReduceEstimate estimate_all_reduce(const AllReduceProblem& p) {
  const auto hidden = static_cast<std::size_t>(p.hidden);
  const DataType gamma_type = p.gamma_type.value_or(p.type);
  std::vector<float> gamma, pre_gamma;
  if (!p.gamma.empty()) gamma = widen(p.gamma, gamma_type, 0, hidden);
  if (!p.pre_gamma.empty()) pre_gamma = widen(p.pre_gamma, gamma_type, 0, hidden);

  AllReduceEstimate result;
  for (std::int64_t token = 0; token < p.tokens; ++token) {
    const std::size_t first = static_cast<std::size_t>(token) * hidden;
    std::vector<double> row(hidden, 0.0);
    for (const Bytes& input : p.inputs) {
      const std::vector<float> addend = widen(input, p.type, first, hidden);
      for (std::size_t i = 0; i < hidden; ++i) row[i] += static_cast<double>(addend[i]);
    }
    append(result.sum, row);
    if (!pre_gamma.empty()) normalise(row, pre_gamma, static_cast<double>(p.weight_bias), static_cast<double>(p.eps));
    if (!p.residual.empty()) {
      const std::vector<float> residual = widen(p.residual, p.type, first, hidden);
      for (std::size_t i = 0; i < hidden; ++i) row[i] += static_cast<double>(residual[i]);
    }
    append(result.residual_out, row);
    if (!gamma.empty()) {
      normalise(row, gamma, static_cast<double>(p.weight_bias), static_cast<double>(p.eps));
      append(result.norm_out, row);
    }
  }
  return result;
}

}  // namespace commfuse::reference
