#include "cli/tune_choose.hpp"

#include <algorithm>
#include <optional>

namespace commfuse::cli {
namespace {

using runtime::TuningChoice;
using Samples = std::vector<TuneSample>;

bool same_launch(const TuningChoice& a, const TuningChoice& b) {
  return a.algorithm == b.algorithm && a.geometry == b.geometry && a.blocks == b.blocks;
}

/// Calls `use` with each run of samples of equal tokens, ascending.
template <typename Use>
void for_each_tokens(Samples samples, Use use) {
  std::stable_sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
  for (auto begin = samples.begin(); begin != samples.end();) {
    const auto end = std::find_if(begin, samples.end(), [&](const auto& each) { return each.tokens != begin->tokens; });
    use(begin, end);
    begin = end;
  }
}

constexpr auto kFaster = [](const TuneSample& a, const TuneSample& b) { return a.microseconds < b.microseconds; };

}  // namespace

std::vector<int> block_caps(unsigned planned, int cluster) {
  std::vector<int> caps = {0};
  for (const int divisor : {2, 4}) {
    const int cap = static_cast<int>(planned) / divisor / cluster * cluster;
    if (cap >= cluster && cap != caps.back()) caps.push_back(cap);
  }
  return caps;
}

std::vector<TuningChoice> choose(Samples samples, double tolerance) {
  std::vector<TuningChoice> choices;
  for_each_tokens(std::move(samples), [&](auto begin, auto end) {
    auto chosen = std::min_element(begin, end, kFaster);
    if (!choices.empty()) {
      const auto kept = std::find_if(begin, end, [&](const auto& e) { return same_launch(e.choice, choices.back()); });
      if (kept != end && kept->microseconds <= chosen->microseconds * (1 + tolerance)) chosen = kept;
    }
    if (choices.empty() || !same_launch(chosen->choice, choices.back())) choices.push_back(chosen->choice);
    choices.back().up_to_tokens = begin->tokens;
  });
  return choices;
}

double worst_planned_ratio(const Samples& samples) {
  double worst = 1;
  for_each_tokens(samples, [&](auto begin, auto end) {
    const double best = std::min_element(begin, end, kFaster)->microseconds;
    for (auto each = begin; each != end; ++each) {
      if (each->planned && best > 0) worst = std::max(worst, each->microseconds / best);
    }
  });
  return worst;
}

}  // namespace commfuse::cli
