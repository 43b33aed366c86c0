// templates/device/quant.cuh, run lane by lane in the simulator, against the reference: values and scales bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "reference/compare.hpp"
#include "reference/data.hpp"
#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "sim/ptx.hpp"
#include "sim/world.hpp"
// After the simulator's ptx.hpp, which stands in for device/ptx.cuh.
#include "device/quant.cuh"
#include "device/vector.cuh"

namespace commfuse {
namespace {

using device::u32;
using device::u64;
using device::u8;
using reference::Bytes;

template <device::Quantizer kKind, u32 kHidden, device::Type kElement = device::Type::kBf16, u32 kGroup = 128,
          device::ScaleLayout kLayout = device::ScaleLayout::kSwizzled128x4>
struct Config {
  static constexpr u32 kHiddenSize = kHidden;
  static constexpr device::Type kType = kElement;
  static constexpr device::Quantizer kQuantizer = kKind;
  static constexpr u32 kGroupColumns = kGroup;
  static constexpr device::ScaleLayout kScaleLayout = kLayout;
};

struct Params {
  const device::Vec16* norm;
  device::QuantTensors tensors;
  u64 rows;
  bool zero_padding;
};

/// One warp per row.
template <class C>
void quantize_kernel(const Params& p) {
  constexpr u32 kVectors = C::kHiddenSize / 8;
  const u32 lane = device::ptx::thread_index();
  const u64 row = device::ptx::block_index();
  const device::RowQuantizer<C> quantizer(p.tensors);
  const auto load = [&](u32 vector, float(&x)[8]) {
    const device::Vec16 zero = {{0, 0, 0, 0}};
    device::unpack<C::kType>(vector < kVectors ? device::ptx::load_weak(p.norm + row * kVectors + vector) : zero, x);
  };
  float row_maximum = 0.0f;
  if constexpr (device::RowQuantizer<C>::kNeedsRowMaximum) {
    for (u32 vector = lane; vector - lane < kVectors; vector += 32) {
      float x[8];
      load(vector, x);
      row_maximum = device::ptx::max_number(row_maximum, device::absolute_maximum(x));
    }
    row_maximum = device::lanes_maximum<32>(row_maximum);
  }
  for (u32 vector = lane; vector - lane < kVectors; vector += 32) {
    float x[8];
    load(vector, x);
    const device::QuantizedVector v = quantizer.encode(x, row_maximum);
    if (vector < kVectors) {
      quantizer.store_values(row, vector, v);
      if (quantizer.stores_scale(vector)) quantizer.store_scale(row, vector, v.scale);
    }
  }
  if (p.zero_padding) quantizer.zero_padding(p.rows, row * 32 + lane, 32 * p.rows);
}

template <class C>
reference::Quantized run(const Bytes& norm, std::int64_t rows, const reference::Quantization& q,
                         std::size_t scale_bytes) {
  sim::Options fast;  // no protocol is at stake here
  fast.weak_memory = false;
  fast.preemption = false;
  sim::World world(1, fast);
  const std::size_t value_bytes = static_cast<std::size_t>(rows) * device::RowQuantizer<C>::kRowBytesOut;
  auto* matrix = world.allocate<device::Vec16>(0, norm.size() / 16, "norm");
  auto* values = world.allocate<u8>(0, value_bytes, "values");
  auto* scales = world.allocate<u8>(0, std::max<std::size_t>(scale_bytes, 1), "scales");
  auto* factor = world.allocate<float>(0, 1, "scale factor");
  world.write(matrix, norm.data(), norm.size());
  world.memset(scales, q.untouched, std::max<std::size_t>(scale_bytes, 1));
  world.write(factor, &q.scale_factor, sizeof(float));
  const auto stride = static_cast<u64>(q.scale_stride != 0 ? q.scale_stride : (rows + 3) / 4 * 4);
  const Params params{matrix, {values, scales, factor, stride}, static_cast<u64>(rows), q.zero_padding};
  world.launch(0, &quantize_kernel<C>, params, {.blocks = static_cast<u32>(rows), .threads = 32});
  world.run();
  return {world.read(values, value_bytes), scale_bytes != 0 ? world.read(scales, scale_bytes) : Bytes{}};
}

template <class C>
reference::Quantization quantization_of() {
  reference::Quantization q;
  q.quantizer = static_cast<reference::Quantizer>(C::kQuantizer);
  q.group = static_cast<int>(C::kGroupColumns);
  q.layout = static_cast<reference::ScaleLayout>(C::kScaleLayout);
  q.untouched = 0xa5;
  q.scale_factor = C::kQuantizer == device::Quantizer::kFp4 ? 448.0f * 6.0f / 5.0f : 0.013f;
  return q;
}

DataType data_type(device::Type type) { return static_cast<DataType>(type); }

/// Quantises `norm` both ways and compares everything that memory holds afterwards.
template <class C>
void expect_same(const Bytes& norm, std::int64_t rows, const reference::Quantization& q, const std::string& what) {
  const auto columns = static_cast<int>(C::kHiddenSize);
  const reference::Quantized expected = reference::quantize(norm, data_type(C::kType), rows, columns, q);
  const reference::Quantized actual = run<C>(norm, rows, q, expected.scales.size());
  const bool fp4 = C::kQuantizer == device::Quantizer::kFp4;
  reference::CompareOptions options;
  options.columns = fp4 ? C::kHiddenSize / 2 : C::kHiddenSize;
  const auto format = fp4 ? reference::Format::kE2m1Pair : reference::Format::kE4m3;
  EXPECT_EQ(reference::compare(what + " values", expected.values, actual.values, format, options), "");
  options.columns = 1;
  const bool words = C::kQuantizer == device::Quantizer::kFp8Block || C::kQuantizer == device::Quantizer::kFp8Token;
  const auto scale_format = words ? reference::Format::kFp32 : reference::Format::kByte;
  EXPECT_EQ(reference::compare(what + " scales", expected.scales, actual.scales, scale_format, options), "");
}

/// All kinds of data, a few row counts, with and without zeroed padding.
template <class C>
void expect_same_everywhere() {
  reference::Quantization q = quantization_of<C>();
  std::uint64_t seed = 1;
  for (const reference::Values values : reference::kAllValues) {
    const std::int64_t rows = seed % 3 == 0 ? 1 : (seed % 3 == 1 ? 3 : 5);
    q.zero_padding = seed % 2 == 0;
    q.scale_stride = seed % 4 == 3 ? 12 : 0;
    const auto count = static_cast<std::size_t>(rows) * C::kHiddenSize;
    const Bytes norm = reference::make_values(data_type(C::kType), count, values, seed++);
    expect_same<C>(norm, rows, q, std::string(reference::to_string(values)));
  }
}

using device::Quantizer;
using device::ScaleLayout;
using device::Type;

template <class C>
class QuantizeRows : public testing::Test {};
using Configs = testing::Types<
    Config<Quantizer::kFp8Tensor, 8>, Config<Quantizer::kFp8Tensor, 2880, Type::kFp16>,
    Config<Quantizer::kFp8Block, 128>, Config<Quantizer::kFp8Block, 2944, Type::kFp16>, Config<Quantizer::kFp8Token, 8>,
    Config<Quantizer::kFp8Token, 2880>, Config<Quantizer::kFp8Token, 2880, Type::kFp16>,
    Config<Quantizer::kFp8Group, 1152, Type::kBf16, 128>, Config<Quantizer::kFp8Group, 2048, Type::kFp16, 128>,
    Config<Quantizer::kFp8Group, 1088, Type::kBf16, 64>, Config<Quantizer::kFp8Group, 96, Type::kFp16, 32>,
    Config<Quantizer::kFp8Group, 72, Type::kBf16, 8>, Config<Quantizer::kFp8Group, 512, Type::kBf16, 256>,
    Config<Quantizer::kFp4, 16>, Config<Quantizer::kFp4, 2880, Type::kFp16>, Config<Quantizer::kFp4, 2896>,
    Config<Quantizer::kFp4, 2880, Type::kBf16, 0, ScaleLayout::kSwizzled8x4>,
    Config<Quantizer::kFp4, 1072, Type::kFp16, 0, ScaleLayout::kSwizzled8x4>,
    Config<Quantizer::kFp4, 1072, Type::kBf16, 0, ScaleLayout::kLinear>>;
TYPED_TEST_SUITE(QuantizeRows, Configs);

TYPED_TEST(QuantizeRows, GiveTheBitsOfTheReference) { expect_same_everywhere<TypeParam>(); }

TEST(Quantize, HandlesMoreRowsThanATile) {
  using Fp4 = Config<Quantizer::kFp4, 80>;
  using Fp4Small = Config<Quantizer::kFp4, 80, Type::kBf16, 0, ScaleLayout::kSwizzled8x4>;
  using Fp8 = Config<Quantizer::kFp8Block, 256>;
  reference::Quantization q = quantization_of<Fp4>();
  for (const std::int64_t rows : {127, 128, 129}) {
    q.zero_padding = rows != 128;
    expect_same<Fp4>(reference::make_values(DataType::kBf16, rows * 80, reference::Values::kNormal, 4), rows, q, "fp4");
    q.layout = reference::ScaleLayout::kSwizzled8x4;
    expect_same<Fp4Small>(reference::make_values(DataType::kBf16, rows * 80, reference::Values::kNormal, 5), rows, q,
                          "8x4");
    q.layout = reference::ScaleLayout::kSwizzled128x4;
    reference::Quantization blocks = quantization_of<Fp8>();
    expect_same<Fp8>(reference::make_values(DataType::kBf16, rows * 256, reference::Values::kNormal, 6), rows, blocks,
                     "fp8");
  }
}

TEST(Quantize, TakesAnyScaleFactor) {
  using Fp4 = Config<Quantizer::kFp4, 160>;
  using Fp8 = Config<Quantizer::kFp8Tensor, 160>;
  const Bytes norm = reference::make_values(DataType::kBf16, 2 * 160, reference::Values::kZeroBlocks, 8);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float factor : {0.0f, -0.0f, -3.0f, 1e-30f, 1e30f, infinity, -infinity, std::nanf(""), 1e-45f}) {
    reference::Quantization q = quantization_of<Fp4>();
    q.scale_factor = factor;
    expect_same<Fp4>(norm, 2, q, "fp4 factor " + std::to_string(factor));
    q = quantization_of<Fp8>();
    q.scale_factor = factor;
    expect_same<Fp8>(norm, 2, q, "fp8 factor " + std::to_string(factor));
  }
}

TEST(Quantize, RoundsTheFp4ScaleAtATie) {
  // A sixth of 6 is exactly 1 once rounded, and 19 lies halfway between the codes of 18 and 20: the even one is 20. A
  // slightly smaller sixth would give 18.
  using Fp4 = Config<Quantizer::kFp4, 16, Type::kBf16, 0, ScaleLayout::kLinear>;
  Bytes norm(16 * 2, 0);
  reference::narrow(std::vector<float>{6.0f}, DataType::kBf16, norm, 0);
  reference::Quantization q = quantization_of<Fp4>();
  q.scale_factor = 19.0f;
  EXPECT_EQ(reference::quantize(norm, DataType::kBf16, 1, 16, q).scales, (Bytes{0x5a}));
  expect_same<Fp4>(norm, 1, q, "tie");
}

/// Every value of the type once, in rows of 256 columns: 256 rows.
template <class C>
void expect_same_for_every_value() {
  Bytes norm(65536 * 2);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    // Neighbouring columns are far apart in the order of values, so that blocks mix magnitudes.
    const std::uint32_t place = bits * 40503u & 0xffffu;
    norm[2 * place] = static_cast<std::uint8_t>(bits);
    norm[2 * place + 1] = static_cast<std::uint8_t>(bits >> 8);
  }
  reference::Quantization q = quantization_of<C>();
  for (const float factor : {1.0f, 0.37f, 300.0f}) {
    q.scale_factor = factor;
    expect_same<C>(norm, 256, q, "every value");
  }
}

TEST(Quantize, ConvertsEveryFp16AndBf16Value) {
  expect_same_for_every_value<Config<Quantizer::kFp4, 256, Type::kBf16>>();
  expect_same_for_every_value<Config<Quantizer::kFp4, 256, Type::kFp16>>();
  expect_same_for_every_value<Config<Quantizer::kFp8Tensor, 256, Type::kBf16>>();
  expect_same_for_every_value<Config<Quantizer::kFp8Tensor, 256, Type::kFp16>>();
}

TEST(Quantize, DividesByTheTokenScaleAsADivisionWould) {
  reference::Random random(21);
  const auto check = [](float x, float scale) {
    const float inverse = 1.0f / scale;
    const std::uint32_t expected = reference::to_e4m3(x / scale);
    ASSERT_EQ(device::software::float_to_e4m3(device::quotient_for_e4m3(x, scale, inverse)), expected)
        << std::hex << reference::bits_of(x) << " / " << reference::bits_of(scale);
  };
  for (int i = 0; i < 300; ++i) {
    // A scale as it arises: from the largest magnitude of a row; and every value that such a row can hold.
    const auto largest = static_cast<std::uint32_t>(random.below(i % 2 == 0 ? 0x7f80 : 0x7c00));
    const float amax = i % 2 == 0 ? reference::from_bfloat(static_cast<std::uint16_t>(largest))
                                  : reference::from_half(static_cast<std::uint16_t>(largest));
    const float scale = std::max(amax / 448.0f, 0x1p-9f / 448.0f);
    for (std::uint32_t bits = 0; bits <= largest; bits += 1 + static_cast<std::uint32_t>(random.below(64))) {
      const float x = i % 2 == 0 ? reference::from_bfloat(static_cast<std::uint16_t>(bits))
                                 : reference::from_half(static_cast<std::uint16_t>(bits));
      check(x, scale);
      check(-x, scale);
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 1.0f, -5.0f, 1e38f, infinity, -infinity, std::nanf("")}) check(x, infinity);
}

TEST(QuantizeReference, StaysWithinHalfAStepOfTheInput) {
  for (const auto quantizer :
       {reference::Quantizer::kFp8Tensor, reference::Quantizer::kFp8Block, reference::Quantizer::kFp8Token,
        reference::Quantizer::kFp8Group, reference::Quantizer::kFp4}) {
    constexpr int kColumns = 1024;
    reference::Quantization q;
    q.quantizer = quantizer;
    q.scale_factor = quantizer == reference::Quantizer::kFp4 ? 448.0f * 6.0f / 6.0f : 0.02f;
    const Bytes norm = reference::make_values(DataType::kBf16, 7 * kColumns, reference::Values::kNormal, 2);
    const std::vector<float> x = reference::widen(norm, DataType::kBf16, 0, 7 * kColumns);
    const std::vector<double> back =
        reference::dequantize(reference::quantize(norm, DataType::kBf16, 7, kColumns, q), 7, kColumns, q);
    // E4M3 keeps 4 significant bits: half a step is 2^-4 of the value. E2M1 keeps 2, and its scale (3 more bits) may
    // cap the largest elements.
    const bool fp4 = quantizer == reference::Quantizer::kFp4;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto value = static_cast<double>(x[i]);
      ASSERT_NEAR(back[i], value, std::abs(value) * (fp4 ? 0.26 : 0.0626) + (fp4 ? 0.2 : 2e-4)) << i;
    }
  }
}

TEST(QuantizeReference, GivesZerosAndFiniteScalesForZeroBlocks) {
  constexpr int kColumns = 256;
  const Bytes zeros(kColumns * 2, 0);
  for (const auto quantizer : {reference::Quantizer::kFp8Block, reference::Quantizer::kFp8Token,
                               reference::Quantizer::kFp8Group, reference::Quantizer::kFp4}) {
    for (const float factor : {1.0f, 1e38f, std::numeric_limits<float>::infinity()}) {
      reference::Quantization q;
      q.quantizer = quantizer;
      q.scale_factor = factor;
      q.layout = reference::ScaleLayout::kLinear;
      const reference::Quantized result = reference::quantize(zeros, DataType::kBf16, 1, kColumns, q);
      for (const std::uint8_t byte : result.values) ASSERT_EQ(byte, 0);
      if (quantizer == reference::Quantizer::kFp4) {
        EXPECT_EQ(result.scales, Bytes(16, 0));
      } else if (quantizer == reference::Quantizer::kFp8Group) {
        EXPECT_EQ(result.scales, (Bytes{127 - 33, 127 - 33, 0, 0}));
      } else {
        float scale = 0;
        std::memcpy(&scale, result.scales.data() + result.scales.size() - 4, 4);
        EXPECT_EQ(scale, quantizer == reference::Quantizer::kFp8Block ? 1e-10f / 448.0f : 0x1p-9f / 448.0f);
      }
    }
  }
}

TEST(QuantizeReference, MatchesHandWorkedBlocks) {
  // Largest magnitude 448: scale 1, so codes are the values' own.
  Bytes row(128 * 2, 0);
  reference::narrow(std::vector<float>{448.0f, -448.0f, 1.0f, 17.0f, 19.0f}, DataType::kBf16, row, 0);
  reference::Quantization q;
  q.quantizer = reference::Quantizer::kFp8Block;
  const reference::Quantized block = reference::quantize(row, DataType::kBf16, 1, 128, q);
  EXPECT_EQ((Bytes{block.values.begin(), block.values.begin() + 5}),
            (Bytes{0x7e, 0xfe, 0x38, 0x58, 0x5a}));  // ties: 16, 20
  EXPECT_EQ(block.scales, (Bytes{0x00, 0x00, 0x80, 0x3f}));
  // UE8M0: 449 / 448 is just above 1, so the scale is 2.
  reference::narrow(std::vector<float>{450.0f}, DataType::kBf16, row, 0);
  q.quantizer = reference::Quantizer::kFp8Group;
  const reference::Quantized group = reference::quantize(row, DataType::kBf16, 1, 128, q);
  EXPECT_EQ(group.scales, (Bytes{128, 0, 0, 0}));
  EXPECT_EQ(group.values[2], 0x30);  // 1 / 2
  // FP4: largest 6, G = 1: scale e4m3(1) = 0x38, codes are the values' own; 2.5 is a tie and goes to 2.
  Bytes small(16 * 2, 0);
  reference::narrow(std::vector<float>{6.0f, -6.0f, 0.5f, 2.5f}, DataType::kBf16, small, 0);
  q.quantizer = reference::Quantizer::kFp4;
  q.layout = reference::ScaleLayout::kLinear;
  const reference::Quantized fp4 = reference::quantize(small, DataType::kBf16, 1, 16, q);
  EXPECT_EQ(fp4.scales, (Bytes{0x38}));
  EXPECT_EQ(fp4.values[0], 0xf7);
  EXPECT_EQ(fp4.values[1], 0x41);
}

TEST(QuantizeReference, RefusesWhatHasNoWholeBlocks) {
  const Bytes norm(2 * 136, 0);
  reference::Quantization q;
  q.quantizer = reference::Quantizer::kFp8Block;
  EXPECT_THROW((void)reference::quantize(norm, DataType::kBf16, 1, 136, q), std::invalid_argument);
  q.quantizer = reference::Quantizer::kFp4;
  EXPECT_THROW((void)reference::quantize(norm, DataType::kBf16, 1, 136, q), std::invalid_argument);
  q.quantizer = reference::Quantizer::kFp8Tensor;
  EXPECT_THROW((void)reference::quantize(norm, DataType::kFp32, 1, 68, q), std::invalid_argument);
}

}  // namespace
}  // namespace commfuse
