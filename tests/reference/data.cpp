#include "reference/data.hpp"

#include <cmath>
#include <cstring>

#include "reference/formats.hpp"

namespace commfuse::reference {
namespace {

int significand_bits(DataType type) {
  switch (type) {
    case DataType::kFp16:
      return 10;
    case DataType::kBf16:
      return 7;
    case DataType::kFp32:
      return 23;
  }
  return 23;
}

class Writer {
 public:
  Writer(DataType type, std::size_t count, std::uint64_t seed)
      : type_(type), bits_(8 * element_bytes(type)), random_(seed), bytes_(count * element_bytes(type)) {}

  void put_value(std::size_t index, float value) { narrow(std::span(&value, 1), type_, bytes_, index); }
  void put_bits(std::size_t index, std::uint32_t bits) {
    const auto size = static_cast<std::size_t>(element_bytes(type_));
    std::memcpy(bytes_.data() + index * size, &bits, size);
  }
  [[nodiscard]] std::uint32_t sign() { return random_.below(2) != 0 ? 1u << (bits_ - 1) : 0u; }
  [[nodiscard]] std::uint32_t infinity() const {
    const std::uint32_t magnitude = (1u << (bits_ - 1)) - 1;
    return magnitude & ~((1u << significand_bits(type_)) - 1);
  }
  [[nodiscard]] std::uint32_t fraction() {
    const std::uint32_t mask = (1u << significand_bits(type_)) - 1;
    return 1 + static_cast<std::uint32_t>(random_.below(mask));
  }
  [[nodiscard]] std::uint32_t any() { return static_cast<std::uint32_t>(random_.next()); }
  [[nodiscard]] Random& random() { return random_; }
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

  void put(std::size_t index, Values values);

 private:
  DataType type_;
  int bits_;
  Random random_;
  Bytes bytes_;
};

void Writer::put(std::size_t i, Values values) {
  const std::uint64_t dice = random_.next();
  const bool rare = dice % 16 == 0;
  const float normal = random_.normal();
  switch (values) {
    case Values::kNormal:
      return put_value(i, normal);
    case Values::kWide: {
      const int span = type_ == DataType::kFp16 ? 14 : 60;
      return put_value(i, std::ldexp(normal, static_cast<int>(random_.below(2 * span)) - span));
    }
    case Values::kZeros:
      return put_bits(i, 0);
    case Values::kNegativeZeros:
      return put_bits(i, 1u << (bits_ - 1));
    case Values::kOnesWords:
      return put_bits(i, ~0u);
    case Values::kNans:
      return rare ? put_bits(i, sign() | infinity() | fraction()) : put_value(i, normal);
    case Values::kSubnormals:
      return put_bits(i, sign() | fraction());
    case Values::kInfinities:
      return rare ? put_bits(i, sign() | infinity()) : put_value(i, normal);
    case Values::kTies: {
      // Whole numbers of units up to 2^(significand + 1), some of them halved: a sum of two often ends in exactly one
      // half.
      const int top = type_ == DataType::kFp32 ? 24 : significand_bits(type_) + 1;
      const auto units = static_cast<float>(random_.below(std::uint64_t{1} << top));
      return put_value(i, (random_.below(2) != 0 ? units : 0.5f * static_cast<float>(random_.below(8))));
    }
    case Values::kOutliers:
      return put_value(i, random_.below(100) == 0 ? normal * 1000.0f : normal);
    case Values::kZeroBlocks: {
      const std::size_t block = i / 16;
      const bool zero = block % 3 == 0 || block / 2 % 5 == 0 || block / 8 % 4 == 0;
      return zero ? put_bits(i, sign()) : put_value(i, normal);
    }
    case Values::kMinusOnes:
      return put_value(i, -1.0f);
    case Values::kComplements: {
      const std::size_t elements = 32 / static_cast<std::size_t>(bits_);  // of a word
      const std::uint32_t word = ~static_cast<std::uint32_t>(i / elements % 128);
      return put_bits(i, word >> (i % elements * static_cast<std::size_t>(bits_)));
    }
    case Values::kAnyBits:
      return put_bits(i, any());
  }
}

}  // namespace

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15ull;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

float Random::normal() {
  // Four uniforms of 16 bits have a deviation of 2^16 / sqrt(3). The sum is whole and the product rounds once, so the
  // number is the same everywhere.
  const std::uint64_t four = next();
  std::int32_t sum = -2 * 65535;
  for (int shift = 0; shift < 64; shift += 16) sum += static_cast<std::int32_t>(four >> shift & 0xffff);
  return static_cast<float>(sum) * 0x1.bb67aep-16f;
}

std::string_view to_string(Values values) {
  switch (values) {
    case Values::kNormal:
      return "normal";
    case Values::kWide:
      return "wide";
    case Values::kZeros:
      return "zeros";
    case Values::kNegativeZeros:
      return "negative_zeros";
    case Values::kOnesWords:
      return "ones_words";
    case Values::kNans:
      return "nans";
    case Values::kSubnormals:
      return "subnormals";
    case Values::kInfinities:
      return "infinities";
    case Values::kTies:
      return "ties";
    case Values::kOutliers:
      return "outliers";
    case Values::kZeroBlocks:
      return "zero_blocks";
    case Values::kMinusOnes:
      return "minus_ones";
    case Values::kComplements:
      return "complements";
    case Values::kAnyBits:
      return "any_bits";
  }
  return "?";
}

Bytes make_values(DataType type, std::size_t count, Values values, std::uint64_t seed) {
  Writer writer(type, count, seed);
  for (std::size_t i = 0; i < count; ++i) writer.put(i, values);
  return writer.take();
}

void fill_problem(AllReduceProblem& problem, Values values, std::uint64_t seed, bool with_residual) {
  const std::size_t count = static_cast<std::size_t>(problem.tokens) * static_cast<std::size_t>(problem.hidden);
  problem.inputs.clear();
  for (int rank = 0; rank < problem.world_size; ++rank) {
    problem.inputs.push_back(make_values(problem.type, count, values, seed * 1000 + static_cast<std::uint64_t>(rank)));
  }
  problem.residual = with_residual ? make_values(problem.type, count, values, seed * 1000 + 100) : Bytes{};
  const DataType gamma_type = problem.gamma_type.value_or(problem.type);
  const auto hidden = static_cast<std::size_t>(problem.hidden);
  Random random(seed * 1000 + 101);
  std::vector<float> gamma(hidden);
  for (float& g : gamma) g = 1.0f + 0.25f * random.normal();
  problem.gamma.resize(hidden * static_cast<std::size_t>(element_bytes(gamma_type)));
  narrow(gamma, gamma_type, problem.gamma, 0);
}

}  // namespace commfuse::reference
