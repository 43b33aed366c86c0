#include "reference/all_reduce.hpp"

#include <cstring>
#include <stdexcept>

#include "reference/formats.hpp"
#include "reference/norm.hpp"

namespace commfuse::reference {
namespace {

using Row = std::vector<float>;

void check(const AllReduceProblem& p) {
  const std::size_t bytes = p.row_bytes() * static_cast<std::size_t>(p.tokens);
  if (p.world_size < 1 || static_cast<int>(p.inputs.size()) != p.world_size) {
    throw std::invalid_argument("reference: one input per rank is needed");
  }
  for (const Bytes& input : p.inputs) {
    if (input.size() != bytes) throw std::invalid_argument("reference: an input has the wrong size");
  }
  if (!p.residual.empty() && p.residual.size() != bytes) {
    throw std::invalid_argument("reference: the residual has the wrong size");
  }
  if (!p.add.empty() && (p.add.size() != bytes || p.residual.empty())) {
    throw std::invalid_argument("reference: what is added must have the right size, and a residual");
  }
  if (p.residual_scattered && (p.residual.empty() || !p.pre_gamma.empty())) {
    throw std::invalid_argument("reference: a scattered residual must exist and excludes a norm before it");
  }
}

Row add_rounded(const Row& a, const Row& b, DataType type) {
  Row sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = round_to(type, a[i] + b[i]);
  return sum;
}

}  // namespace

float reduce_element(const std::vector<float>& contributions, DataType type, bool fp32_accumulate) {
  float sum = contributions[0];
  for (std::size_t rank = 1; rank < contributions.size(); ++rank) {
    sum = sum + contributions[rank];
    if (!fp32_accumulate) sum = round_to(type, sum);
  }
  return round_to(type, sum);
}

AllReduceResult all_reduce(const AllReduceProblem& p) {
  check(p);
  const auto hidden = static_cast<std::size_t>(p.hidden);
  const DataType gamma_type = p.gamma_type.value_or(p.type);
  Row weight, pre_weight;
  if (!p.gamma.empty()) weight = norm_weight(p.gamma, gamma_type, hidden, p.weight_bias);
  if (!p.pre_gamma.empty()) pre_weight = norm_weight(p.pre_gamma, gamma_type, hidden, p.weight_bias);

  AllReduceResult result;
  result.sum.resize(p.row_bytes() * static_cast<std::size_t>(p.tokens));
  result.residual_out.resize(result.sum.size());
  if (!p.gamma.empty()) result.norm_out.resize(result.sum.size());

  std::vector<float> column(static_cast<std::size_t>(p.world_size));
  for (std::int64_t token = 0; token < p.tokens; ++token) {
    const std::size_t first = static_cast<std::size_t>(token) * hidden;
    Row residual;
    if (!p.residual.empty()) residual = widen(p.residual, p.type, first, hidden);

    std::vector<Row> rows;
    for (const Bytes& input : p.inputs) rows.push_back(widen(input, p.type, first, hidden));
    if (p.residual_scattered) {
      Row& own = rows[static_cast<std::size_t>(owner_of_row(p.tokens, p.world_size, token))];
      own = add_rounded(own, residual, p.type);
    }
    Row sum(hidden);
    for (std::size_t i = 0; i < hidden; ++i) {
      for (std::size_t rank = 0; rank < rows.size(); ++rank) column[rank] = rows[rank][i];
      sum[i] = reduce_element(column, p.type, p.fp32_accumulate);
    }
    narrow(sum, p.type, result.sum, first);
    if (p.world_size == 1 && !p.residual_scattered) {  // nothing was computed: a NaN keeps its payload
      std::memcpy(result.sum.data() + first * element_bytes(p.type), p.inputs[0].data() + first * element_bytes(p.type),
                  p.row_bytes());
    }

    const bool adds = !residual.empty() && !p.residual_scattered;
    Row y = sum;
    if (!pre_weight.empty()) y = rms_norm(y, pre_weight, p.eps, p.type);
    if (!p.add.empty()) y = add_rounded(y, widen(p.add, p.type, first, hidden), p.type);
    if (adds) y = add_rounded(y, residual, p.type);
    if (adds || !pre_weight.empty()) {
      narrow(y, p.type, result.residual_out, first);
    } else {
      std::memcpy(result.residual_out.data() + first * element_bytes(p.type),
                  result.sum.data() + first * element_bytes(p.type), p.row_bytes());
    }
    if (!weight.empty()) narrow(rms_norm(y, weight, p.eps, p.type), p.type, result.norm_out, first);
  }
  return result;
}

}  // namespace commfuse::reference
