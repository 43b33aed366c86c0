// Test data that is the same on every machine, special values included.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "reference/all_reduce.hpp"

namespace commfuse::reference {

/// A 64-bit generator (SplitMix) with a fixed sequence; the standard library's distributions differ between machines.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  [[nodiscard]] std::uint64_t next();
  /// In [0, bound).
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  /// About normal: mean 0, deviation 1, within +-3.5.
  [[nodiscard]] float normal();

 private:
  std::uint64_t state_;
};

enum class Values {
  kNormal,  ///< what activations look like
  kWide,    ///< magnitudes over the whole range of the type
  kZeros,   ///< +0
  kNegativeZeros,
  kOnesWords,  ///< every bit set: a NaN whose words are 0xffffffff
  kNans,       ///< NaN of every payload and sign among normal values
  kSubnormals,
  kInfinities,   ///< infinities of both signs among normal values
  kTies,         ///< pairs whose sums lie halfway between two values of a 16-bit type
  kOutliers,     ///< normal, with one element in a hundred a thousand times larger
  kZeroBlocks,   ///< blocks of 16, 32 or 128 columns that are all zero, of both signs, among normal values
  kMinusOnes,    ///< -1, with norm weights of 1: FP4 results are all -6, words of 0xffffffff
  kComplements,  ///< 32-bit words that are the complements of 0 to 127, in turn (not among kAllValues)
  kAnyBits,      ///< uniform random bits: everything the type can hold
};
inline constexpr std::array kAllValues = {
    Values::kNormal,     Values::kWide,       Values::kZeros,      Values::kNegativeZeros, Values::kOnesWords,
    Values::kNans,       Values::kSubnormals, Values::kInfinities, Values::kTies,          Values::kOutliers,
    Values::kZeroBlocks, Values::kMinusOnes,  Values::kAnyBits};
[[nodiscard]] std::string_view to_string(Values values);

/// `count` elements of `type`. Equal arguments give equal bytes.
[[nodiscard]] Bytes make_values(DataType type, std::size_t count, Values values, std::uint64_t seed);

/// Fills inputs, residual (if `with_residual`) and gamma (normal around 1) of a problem whose shape is set.
void fill_problem(AllReduceProblem& problem, Values values, std::uint64_t seed, bool with_residual = true);

}  // namespace commfuse::reference
