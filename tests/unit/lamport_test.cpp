#include "commfuse/lamport.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "jit_support.hpp"

namespace commfuse {
namespace {

constexpr unsigned char kBehind = 0x5a;

std::vector<unsigned char> pattern_of(EmptyValue value) {
  switch (value) {
    case EmptyValue::kAllOnes:
      return {0xff};
    case EmptyValue::kNegativeZero16:
      return {0x00, 0x80};
    case EmptyValue::kNegativeZero32:
      return {0x00, 0x00, 0x00, 0x80};
  }
  return {};
}

TEST(LamportInitialize, FillsAnyNumberOfBytesAndNothingBehindThem) {
  (void)test::reset_cuda_shim();
  for (const EmptyValue value : {EmptyValue::kAllOnes, EmptyValue::kNegativeZero16, EmptyValue::kNegativeZero32}) {
    const std::vector<unsigned char> pattern = pattern_of(value);
    for (std::size_t bytes = 0; bytes <= 70; ++bytes) {
      alignas(4) unsigned char memory[80];
      std::memset(memory, kBehind, sizeof(memory));
      ASSERT_TRUE(lamport_initialize(memory, bytes, value, nullptr).ok());
      for (std::size_t i = 0; i < sizeof(memory); ++i) {
        ASSERT_EQ(memory[i], i < bytes ? pattern[i % pattern.size()] : kBehind) << bytes << " bytes, byte " << i;
      }
    }
  }
}

TEST(LamportInitialize, CountsBytesBeyondFourGibibytes) {
  test::CudaShim& shim = test::reset_cuda_shim();
  shim.memset_writes = false;
  constexpr std::uint64_t kBytes = (std::uint64_t{9} << 30) + 7;
  ASSERT_TRUE(lamport_initialize(reinterpret_cast<void*>(0x1000), kBytes, EmptyValue::kAllOnes, nullptr).ok());
  EXPECT_EQ(shim.memset_bytes, kBytes);
  EXPECT_EQ(shim.memset_end, 0x1000 + kBytes);
}

TEST(LamportInitialize, AllFillsThreeBuffersOfSoManyBytesEach) {
  (void)test::reset_cuda_shim();
  alignas(4) unsigned char memory[3][16];
  std::memset(memory, kBehind, sizeof(memory));
  ASSERT_TRUE(lamport_initialize_all(memory[0], memory[1], memory[2], 10, EmptyValue::kNegativeZero16, nullptr).ok());
  for (const auto& buffer : memory) {
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(buffer[i], i >= 10 ? kBehind : i % 2 == 0 ? 0x00 : 0x80);
  }
}

TEST(LamportInitialize, RefusesWhatItCannotFillAndTouchesNothing) {
  test::CudaShim& shim = test::reset_cuda_shim();
  alignas(4) unsigned char memory[8] = {};
  EXPECT_EQ(lamport_initialize(nullptr, 8, EmptyValue::kAllOnes, nullptr).code, Code::kInvalidArgument);
  EXPECT_EQ(lamport_initialize(memory + 2, 4, EmptyValue::kAllOnes, nullptr).code, Code::kInvalidArgument);
  EXPECT_TRUE(lamport_initialize(nullptr, 0, EmptyValue::kAllOnes, nullptr).ok());
  EXPECT_EQ(shim.memset_bytes, 0U);
  shim.memset_result = 1;
  EXPECT_EQ(lamport_initialize(memory, 8, EmptyValue::kAllOnes, nullptr).code, Code::kDriver);
  EXPECT_EQ(lamport_initialize(memory, 3, EmptyValue::kAllOnes, nullptr).subject, "cuMemsetD8Async");
  EXPECT_EQ(memory[0], 0);
}

}  // namespace
}  // namespace commfuse
