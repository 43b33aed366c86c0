// The simulator's arithmetic against computations that share nothing with it: in double precision, by search, by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/ptx.hpp"
#include "sim/random.hpp"

namespace commfuse::sim {
namespace {

namespace ptx = device::ptx;
using device::u16;

float of(u32 bits) { return std::bit_cast<float>(bits); }
u32 bits(float v) { return std::bit_cast<u32>(v); }

/// The value of a format with `exponent_bits` and `fraction_bits`, finite or infinite, computed from its definition.
double decode(u32 code, int exponent_bits, int fraction_bits) {
  const int exponent = static_cast<int>(code >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = static_cast<int>(code) & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (code >> (exponent_bits + fraction_bits) & 1u) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

TEST(Arithmetic, EveryHalfIsWidenedExactly) {
  for (u32 code = 0; code <= 0xffff; ++code) {
    const float widened = ptx::half_to_float(static_cast<u16>(code));
    if ((code & 0x7fffu) > 0x7c00u) {
      ASSERT_EQ(bits(widened), 0x7fffffffu) << code;
    } else {
      ASSERT_EQ(static_cast<double>(widened), decode(code, 5, 10)) << code;
      ASSERT_EQ(std::signbit(widened), (code & 0x8000u) != 0) << code;
    }
  }
}
TEST(Arithmetic, EveryHalfSurvivesTheWayThere) {
  for (u32 code = 0; code <= 0xffff; ++code) {
    const u32 back = ptx::floats_to_half2(ptx::half_to_float(static_cast<u16>(code)), 0.0f);
    ASSERT_EQ(back, (code & 0x7fffu) > 0x7c00u ? 0x7fffu : code);
  }
}

/// Nearest-even narrowing by search among all values of the format.
class Narrowing {
 public:
  Narrowing(int exponent_bits, int fraction_bits) : infinity_(((1u << exponent_bits) - 1) << fraction_bits) {
    for (u32 code = 0; code < infinity_; ++code) values_.push_back(decode(code, exponent_bits, fraction_bits));
    // One more step in place of infinity: what rounds to it overflows.
    values_.push_back(2 * values_.back() - values_[values_.size() - 2]);
  }
  u32 operator()(float v) const {
    if (std::isnan(v)) return 0x7fff;
    const u32 sign = std::signbit(v) ? 0x8000u : 0;
    const double magnitude = std::abs(static_cast<double>(v));
    if (magnitude >= values_.back()) return sign | infinity_;
    const auto above = static_cast<u32>(std::lower_bound(values_.begin(), values_.end(), magnitude) - values_.begin());
    if (values_[above] == magnitude) return sign | above;
    const double to_above = values_[above] - magnitude;
    const double to_below = magnitude - values_[above - 1];
    if (to_above == to_below) return sign | (above % 2 == 0 ? above : above - 1);
    return sign | (to_above < to_below ? above : above - 1);
  }
  /// Every value, every midpoint and the floats beside them.
  [[nodiscard]] std::vector<float> critical() const {
    std::vector<float> all;
    for (std::size_t i = 0; i + 1 < values_.size(); ++i) {
      for (const double v : {values_[i], (values_[i] + values_[i + 1]) / 2}) {
        const auto f = static_cast<float>(v);
        all.insert(all.end(), {f, -f, std::nextafter(f, 0.0f), std::nextafter(f, INFINITY)});
      }
    }
    return all;
  }

 private:
  u32 infinity_;
  std::vector<double> values_;
};

void expect_narrowing(const Narrowing& expected, u32 (*narrow)(float, float)) {
  for (const float v : expected.critical()) {
    ASSERT_EQ(narrow(v, 1.0f) & 0xffffu, expected(v)) << std::hexfloat << v;
  }
  Random random(5);
  for (int i = 0; i < 300'000; ++i) {
    const float low = of(static_cast<u32>(random.next()));
    const float high = of(static_cast<u32>(random.next()));
    ASSERT_EQ(narrow(low, high), expected(high) << 16 | expected(low)) << std::hexfloat << low << ' ' << high;
  }
  for (const float v :
       {0.0f, -0.0f, INFINITY, -INFINITY, of(0x7f800001), of(0xffc00000), of(0x7f7fffff), of(1), of(0x80000001)}) {
    ASSERT_EQ(narrow(v, v), expected(v) << 16 | expected(v)) << std::hexfloat << v;
  }
}
TEST(Arithmetic, HalfIsTheNearestAndEvenInTies) { expect_narrowing(Narrowing(5, 10), &ptx::floats_to_half2); }
TEST(Arithmetic, BfloatIsTheNearestAndEvenInTies) { expect_narrowing(Narrowing(8, 7), &ptx::floats_to_bfloat2); }

TEST(Arithmetic, NanResultsAreCanonical) {
  const float nan = of(0xffc12345);
  const float infinity = INFINITY;
  EXPECT_EQ(bits(ptx::add_rn(nan, 1.0f)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::add_rn(infinity, -infinity)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::mul_rn(0.0f, infinity)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::fma_rn(1.0f, nan, 1.0f)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::fma_rn(infinity, 1.0f, -infinity)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::div_rn(0.0f, 0.0f)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::sqrt_rn(-1.0f)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::sqrt_rn(-0.0f)), 0x80000000u);
}
TEST(Arithmetic, MaximumPrefersNumbersAndPositiveZero) {
  const float nan = of(0xffc12345);
  EXPECT_EQ(ptx::max_number(nan, -3.0f), -3.0f);
  EXPECT_EQ(ptx::max_number(-3.0f, nan), -3.0f);
  EXPECT_EQ(bits(ptx::max_number(nan, nan)), 0x7fffffffu);
  EXPECT_EQ(bits(ptx::max_number(-0.0f, 0.0f)), 0u);
  EXPECT_EQ(bits(ptx::max_number(0.0f, -0.0f)), 0u);
  EXPECT_EQ(ptx::max_number(-INFINITY, 2.0f), 2.0f);
}

TEST(Arithmetic, SumsProductsQuotientsAndRootsAreRoundedOnce) {
  Random random(11);
  const auto number = [&] {
    // Exponents around the middle, so that double-precision intermediates are exact or more than wide enough.
    return of(static_cast<u32>(random.next() & 0x807fffffu) | (random.below(60) + 97) << 23);
  };
  for (int i = 0; i < 200'000; ++i) {
    const float a = number();
    const float b = number();
    // A double holds the product, and rounds sums, quotients and roots so finely that rounding again does no harm
    // (2 p + 2 bits are enough).
    ASSERT_EQ(ptx::mul_rn(a, b), static_cast<float>(static_cast<double>(a) * static_cast<double>(b)));
    ASSERT_EQ(ptx::add_rn(a, b), static_cast<float>(static_cast<double>(a) + static_cast<double>(b)));
    ASSERT_EQ(ptx::div_rn(a, b), static_cast<float>(static_cast<double>(a) / static_cast<double>(b)));
    ASSERT_EQ(ptx::sqrt_rn(std::abs(a)), static_cast<float>(std::sqrt(static_cast<double>(std::abs(a)))));
  }
}
TEST(Arithmetic, SubnormalsAreKept) {
  EXPECT_EQ(bits(ptx::add_rn(of(1), of(2))), 3u);
  EXPECT_EQ(bits(ptx::mul_rn(of(0x00800000), 0.5f)), 0x00400000u);
  EXPECT_EQ(bits(ptx::fma_rn(of(1), 1.0f, of(1))), 2u);
  EXPECT_EQ(bits(ptx::div_rn(of(0x00800000), 4.0f)), 0x00200000u);
}
TEST(Arithmetic, MultiplyAddIsFusedAndSeparateOperationsAreNot) {
  // (1 + e)^2 - (1 + 2 e) is e^2 when fused and 0 when the product is rounded first; e = 2^-12 puts e^2 half a unit
  // below.
  const float a = 1.0f + 0x1p-12f;
  const float c = -(1.0f + 0x1p-11f);
  EXPECT_EQ(ptx::fma_rn(a, a, c), 0x1p-24f);
  volatile float x = a;  // at run time, so that the compiler's contraction would show
  volatile float y = c;
  EXPECT_EQ(ptx::add_rn(ptx::mul_rn(x, x), y), 0.0f);
}

}  // namespace
}  // namespace commfuse::sim
