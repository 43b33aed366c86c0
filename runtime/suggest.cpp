#include "runtime/suggest.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace commfuse::runtime {
namespace {

constexpr std::size_t kLongestGuess = 64;

std::string folded(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-' || c == ' ') c = '_';
  }
  return result;
}

/// Levenshtein distance, one row at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string closest_name(std::string_view text, std::span<const std::string> known) {
  if (text.empty() || text.size() > kLongestGuess) return {};
  const std::string wanted = folded(text);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(wanted, folded(name));
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace commfuse::runtime
