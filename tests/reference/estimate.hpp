// The same operations in plain double precision: not bit for bit, but free of everybody's rounding rules. It guards the
// exact emulation against being exactly wrong.
#pragma once

#include <vector>

#include "reference/all_reduce.hpp"

namespace commfuse::reference {

struct AllReduceEstimate {
  std::vector<double> sum;
  std::vector<double> residual_out;
  std::vector<double> norm_out;  ///< empty without gamma
};

[[nodiscard]] AllReduceEstimate estimate_all_reduce(const AllReduceProblem& problem);

}  // namespace commfuse::reference
