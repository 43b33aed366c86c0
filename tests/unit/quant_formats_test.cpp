// The software conversions of templates/device/quant_formats.cuh, and the reference's own, against the host conversions
// that the CUDA headers ship and against a search of the formats' tables.
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/data.hpp"
#include "reference/formats.hpp"
#include "sim/ptx.hpp"
// After the simulator's ptx.hpp, which stands in for device/ptx.cuh.
#include "device/quant_formats.cuh"

namespace commfuse {
namespace {

std::uint8_t vendor_e4m3(float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }
std::uint8_t vendor_e2m1(float v) { return __nv_cvt_float_to_fp4(v, __NV_E2M1, cudaRoundNearest); }

/// Both implementations against the vendor's. Returns false (having failed the test) on the first difference.
bool agrees(float v) {
  const std::uint32_t e4m3 = vendor_e4m3(v), e2m1 = vendor_e2m1(v);
  const bool same = device::software::float_to_e4m3(v) == e4m3 && reference::to_e4m3(v) == e4m3 &&
                    device::software::float_to_e2m1(v) == e2m1 && reference::to_e2m1(v) == e2m1;
  EXPECT_TRUE(same) << "input bits 0x" << std::hex << reference::bits_of(v) << " e4m3 0x" << e4m3 << " device 0x"
                    << device::software::float_to_e4m3(v) << " reference 0x" << +reference::to_e4m3(v) << "; e2m1 0x"
                    << e2m1 << " device 0x" << device::software::float_to_e2m1(v) << " reference 0x"
                    << +reference::to_e2m1(v);
  return same;
}

TEST(QuantFormats, ConvertEveryFp16ValueAsTheVendorDoes) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float v = reference::from_half(static_cast<std::uint16_t>(bits));
    ASSERT_TRUE(agrees(v));
    const __half_raw raw{static_cast<unsigned short>(bits)};
    ASSERT_EQ(device::software::float_to_e4m3(v), __nv_cvt_halfraw_to_fp8(raw, __NV_SATFINITE, __NV_E4M3)) << bits;
    ASSERT_EQ(device::software::float_to_e2m1(v), __nv_cvt_halfraw_to_fp4(raw, __NV_E2M1, cudaRoundNearest)) << bits;
  }
}

TEST(QuantFormats, ConvertEveryBf16ValueAsTheVendorDoes) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float v = reference::from_bfloat(static_cast<std::uint16_t>(bits));
    ASSERT_TRUE(agrees(v));
    const __nv_bfloat16_raw raw{static_cast<unsigned short>(bits)};
    ASSERT_EQ(device::software::float_to_e4m3(v), __nv_cvt_bfloat16raw_to_fp8(raw, __NV_SATFINITE, __NV_E4M3)) << bits;
    ASSERT_EQ(device::software::float_to_e2m1(v), __nv_cvt_bfloat16raw_to_fp4(raw, __NV_E2M1, cudaRoundNearest))
        << bits;
  }
}

TEST(QuantFormats, ConvertFloatsAroundEveryRoundingBoundary) {
  // Every boundary of both formats has 12 zero bits at its end: these are the boundaries and their neighbours.
  for (std::uint32_t high = 0; high < 1u << 20; ++high) {
    for (const std::uint32_t low : {0x000u, 0x001u, 0xfffu}) ASSERT_TRUE(agrees(reference::float_of(high << 12 | low)));
  }
  reference::Random random(11);
  for (int i = 0; i < 200000; ++i) {
    ASSERT_TRUE(agrees(reference::float_of(static_cast<std::uint32_t>(random.next()))));
    ASSERT_TRUE(agrees(random.normal() * 8.0f));
  }
}

/// The nearest code by search; on a tie, the even one.
template <std::size_t N>
std::uint32_t search(const std::array<float, N>& values, float magnitude) {
  std::size_t best = 0;
  for (std::size_t code = 1; code < N; ++code) {
    const double now = std::abs(static_cast<double>(magnitude) - static_cast<double>(values[code]));
    const double before = std::abs(static_cast<double>(magnitude) - static_cast<double>(values[best]));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint32_t>(best);
}

TEST(QuantFormats, RoundToTheNearestTableEntryTiesToEven) {
  std::array<float, 127> e4m3{};
  for (std::uint32_t code = 0; code < e4m3.size(); ++code) {
    const std::uint32_t field = code >> 3, fraction = code & 7;
    e4m3[code] = field == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                            : std::ldexp(static_cast<float>(8 + fraction), static_cast<int>(field) - 10);
  }
  const std::array<float, 8> e2m1 = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  std::vector<float> inputs = {0.25f, 0.75f,     1.25f,     1.75f,  2.5f,   3.5f,
                               5.0f,  5.000001f, 4.999999f, 448.0f, 464.0f, 480.0f};
  for (std::size_t code = 0; code + 1 < e4m3.size(); ++code) {
    const float middle = (e4m3[code] + e4m3[code + 1]) * 0.5f;
    inputs.insert(inputs.end(), {e4m3[code], middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)});
  }
  reference::Random random(3);
  for (int i = 0; i < 20000; ++i) inputs.push_back(std::abs(random.normal()) * (i % 2 == 0 ? 4.0f : 150.0f));
  for (const float v : inputs) {
    ASSERT_EQ(device::software::float_to_e4m3(v), search(e4m3, v)) << v;
    ASSERT_EQ(device::software::float_to_e4m3(-v), search(e4m3, v) | 0x80u) << v;
    ASSERT_EQ(device::software::float_to_e2m1(v), search(e2m1, v)) << v;
    ASSERT_EQ(device::software::float_to_e2m1(-v), search(e2m1, v) | 0x8u) << v;
  }
}

TEST(QuantFormats, SaturateAndKeepNanVisible) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(device::software::float_to_e4m3(infinity), 0x7eu);
  EXPECT_EQ(device::software::float_to_e4m3(-infinity), 0xfeu);
  EXPECT_EQ(device::software::float_to_e2m1(infinity), 0x7u);
  EXPECT_EQ(device::software::float_to_e2m1(-infinity), 0xfu);
  for (const std::uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffc00000u}) {
    EXPECT_EQ(device::software::float_to_e4m3(reference::float_of(nan)), 0x7fu);
    EXPECT_EQ(device::software::float_to_e2m1(reference::float_of(nan)), 0x7u);
  }
}

TEST(QuantFormats, WidenEveryCodeExactly) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const __half_raw vendor = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3);
    const float expected = reference::from_half(vendor.x);
    const float device_value = device::e4m3_to_float(code);
    const float reference_value = reference::from_e4m3(static_cast<std::uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(device_value) && std::isnan(reference_value)) << code;
    } else {
      EXPECT_EQ(reference::bits_of(device_value), reference::bits_of(expected)) << code;
      EXPECT_EQ(reference::bits_of(reference_value), reference::bits_of(expected)) << code;
    }
  }
  for (std::uint32_t code = 0; code < 16; ++code) {
    const __half_raw vendor = __nv_cvt_fp4_to_halfraw(static_cast<__nv_fp4_storage_t>(code), __NV_E2M1);
    const std::uint32_t expected = reference::bits_of(reference::from_half(vendor.x));
    EXPECT_EQ(reference::bits_of(device::e2m1_to_float(code)), expected) << code;
    EXPECT_EQ(reference::bits_of(reference::from_e2m1(static_cast<std::uint8_t>(code))), expected) << code;
  }
}

TEST(QuantFormats, PackLowestFirst) {
  EXPECT_EQ(device::floats_to_e4m3x4(1.0f, 2.0f, -1.0f, 0.0f), 0x00b84038u);
  EXPECT_EQ(device::floats_to_e2m1x8({0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, -6.0f}), 0xf6543210u);
  EXPECT_EQ(device::float_to_e4m3(448.0f), 0x7eu);
}

TEST(QuantFormats, RoundScalesUpToPowersOfTwo) {
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    const auto code = static_cast<std::uint32_t>(exponent + 127);
    EXPECT_EQ(device::ceil_to_ue8m0(power), code);
    EXPECT_EQ(device::ceil_to_ue8m0(std::nextafter(power, 0.0f)), exponent == -126 ? 1u : code) << exponent;
    EXPECT_EQ(device::ceil_to_ue8m0(std::nextafter(power, std::numeric_limits<float>::infinity())),
              std::min(code + 1, 254u))
        << exponent;
    EXPECT_EQ(device::inverse_of_ue8m0(code), std::ldexp(1.0f, -exponent)) << exponent;
  }
  EXPECT_EQ(device::ceil_to_ue8m0(std::numeric_limits<float>::infinity()), 254u);
}

}  // namespace
}  // namespace commfuse
