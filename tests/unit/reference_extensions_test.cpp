// The reference of latent_norm and attn_res_combine against plain double precision, and the exponential that device
// code shares with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/compare.hpp"
#include "reference/data.hpp"
#include "reference/extensions.hpp"
#include "reference/formats.hpp"
#include "sim/ptx.hpp"
// After the simulator's ptx.hpp, which stands in for device/ptx.cuh.
#include "device/exponential.cuh"

namespace commfuse::reference {
namespace {

std::vector<double> doubles(const Bytes& bytes, DataType type, std::size_t count) {
  const std::vector<float> values = widen(bytes, type, 0, count);
  return {values.begin(), values.end()};
}
double tolerance(DataType type) { return type == DataType::kFp32 ? 4e-6 : (type == DataType::kFp16 ? 2e-3 : 1.6e-2); }

constexpr DataType kTypes[] = {DataType::kFp16, DataType::kBf16, DataType::kFp32};

TEST(ReferenceLatentNorm, NormalisesTheLatentColumnsAndCopiesTheRest) {
  constexpr std::size_t kRows = 3, kColumns = 2112, kLatent = 512;
  for (const DataType type : kTypes) {
    const Bytes sum = make_values(type, kRows * kColumns, Values::kNormal, 3);
    const Bytes gamma = make_values(type, kLatent, Values::kNormal, 4);
    const Bytes out = latent_norm(sum, type, kRows, kColumns, kLatent, gamma, type, 1e-6f);
    std::vector<double> expected = doubles(sum, type, kRows * kColumns);
    const std::vector<double> weight = doubles(gamma, type, kLatent);
    for (std::size_t row = 0; row < kRows; ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < kLatent; ++i) squares += std::pow(expected[row * kColumns + i], 2);
      const double rms = 1 / std::sqrt(squares / kLatent + 1e-6);
      for (std::size_t i = 0; i < kLatent; ++i) expected[row * kColumns + i] *= rms * weight[i];
    }
    CompareOptions options;
    options.columns = kColumns;
    EXPECT_EQ(compare_near("latent", expected, out, type, tolerance(type), 1e-6, options), "");
    // Beyond the latent part, bit for bit.
    const std::size_t size = static_cast<std::size_t>(element_bytes(type));
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto from = static_cast<std::ptrdiff_t>((row * kColumns + kLatent) * size);
      const auto to = static_cast<std::ptrdiff_t>((row + 1) * kColumns * size);
      EXPECT_TRUE(std::equal(sum.begin() + from, sum.begin() + to, out.begin() + from));
    }
  }
  EXPECT_THROW((void)latent_norm(Bytes(64), DataType::kBf16, 1, 32, 12, Bytes(64), DataType::kBf16, 0.0f),
               std::invalid_argument);
}

AttentionResidual make_state(DataType type, std::size_t rows, std::size_t columns) {
  AttentionResidual state;
  Random random(6);
  for (std::size_t row = 0; row < rows; ++row) {
    state.maximum.push_back(3.0f * random.normal());
    state.denominator.push_back(1.0f + std::abs(random.normal()));
  }
  for (std::size_t i = 0; i < rows * columns; ++i) state.accumulator.push_back(random.normal());
  state.gamma = make_values(type, columns, Values::kNormal, 7);
  state.residual_weight.resize(columns * static_cast<std::size_t>(element_bytes(type)));
  std::vector<float> small(columns);
  for (float& v : small) v = 0.05f * random.normal();
  narrow(small, type, state.residual_weight, 0);
  return state;
}

TEST(ReferenceAttnResCombine, AgreesWithDoublePrecision) {
  constexpr std::size_t kRows = 4, kColumns = 1032;
  for (const DataType type : kTypes) {
    AttentionResidual state = make_state(type, kRows, kColumns);
    const Bytes y = make_values(type, kRows * kColumns, Values::kNormal, 8);
    const std::vector<double> p = doubles(y, type, kRows * kColumns);
    const std::vector<double> gamma = doubles(state.gamma, type, kColumns);
    const std::vector<double> weight = doubles(state.residual_weight, type, kColumns);
    std::vector<double> expected(p.size());
    for (std::size_t row = 0; row < kRows; ++row) {
      double dot = 0, squares = 0;
      for (std::size_t i = 0; i < kColumns; ++i) {
        const double v = p[row * kColumns + i];
        dot += v * gamma[i] * weight[i];
        squares += v * v;
      }
      const double logit = dot / std::sqrt(squares / kColumns + 1e-6);
      const auto before = static_cast<double>(state.maximum[row]);
      const double c = std::exp(before - std::max(before, logit)), w = std::exp(logit - std::max(before, logit));
      for (std::size_t i = 0; i < kColumns; ++i) {
        const std::size_t at = row * kColumns + i;
        expected[at] = (static_cast<double>(state.accumulator[at]) * c + w * p[at]) /
                       (static_cast<double>(state.denominator[row]) * c + w);
      }
    }
    CompareOptions options;
    options.columns = kColumns;
    const double slack = type == DataType::kFp32 ? 1e-5 : 1e-4;
    EXPECT_EQ(compare_near("mix", expected, attn_res_combine(y, type, kRows, kColumns, state), type,
                           tolerance(type) + slack, slack, options),
              "");
    state.out_weight = state.gamma;
    for (std::size_t row = 0; row < kRows; ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < kColumns; ++i) squares += std::pow(expected[row * kColumns + i], 2);
      const double rms = 1 / std::sqrt(squares / kColumns + 1e-6);
      for (std::size_t i = 0; i < kColumns; ++i) expected[row * kColumns + i] *= rms * gamma[i];
    }
    EXPECT_EQ(compare_near("normalised mix", expected, attn_res_combine(y, type, kRows, kColumns, state), type,
                           2 * tolerance(type) + slack, slack, options),
              "");
  }
}

TEST(ReferenceAttnResCombine, StartsFromAnEmptyState) {
  // No residual seen yet: maximum -infinity, nothing accumulated. The result is y itself.
  constexpr std::size_t kColumns = 64;
  AttentionResidual state = make_state(DataType::kBf16, 1, kColumns);
  state.maximum = {-std::numeric_limits<float>::infinity()};
  state.denominator = {0.0f};
  state.accumulator.assign(kColumns, 0.0f);
  const Bytes y = make_values(DataType::kBf16, kColumns, Values::kNormal, 9);
  EXPECT_EQ(attn_res_combine(y, DataType::kBf16, 1, kColumns, state), y);
}

TEST(CanonicalExp, HasTheSameBitsOnBothSidesAndIsAccurate) {
  double worst = 0;
  const auto check = [&](float x) {
    const float reference_value = canonical_exp(x);
    ASSERT_EQ(bits_of(device::exp_of_nonpositive(x)), bits_of(reference_value)) << x;
    const double exact = std::exp(static_cast<double>(x));
    const double unit = exact < 0x1p-126 ? 0x1p-149 : std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(static_cast<double>(reference_value) - exact) / unit);
  };
  for (std::uint32_t bits = 0x80000000u; bits < 0xc3800000u; bits += 997) check(float_of(bits));  // -0 to -256
  for (int n = 0; n < 110; ++n) {
    for (const float x :
         {static_cast<float>(-n), -0.6931472f * static_cast<float>(n), -0.34657359f * static_cast<float>(n)}) {
      check(x);
      check(std::nextafter(x, -1e9f));
    }
  }
  check(0.0f);
  check(-std::numeric_limits<float>::infinity());
  EXPECT_LT(worst, 1.0);
  EXPECT_EQ(canonical_exp(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(canonical_exp(std::nanf(""))));
  EXPECT_TRUE(std::isnan(device::exp_of_nonpositive(std::nanf(""))));
}

}  // namespace
}  // namespace commfuse::reference
