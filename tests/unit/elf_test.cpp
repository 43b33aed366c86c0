#include "runtime/elf.hpp"

#include <gtest/gtest.h>

#include <string>

#include "jit_support.hpp"
#include "shims/mini_cubin.hpp"

namespace commfuse::runtime {
namespace {

test::MiniCubin sample() {
  test::MiniCubin cubin;
  cubin.kernel = "a_kernel";
  cubin.arch = 103;
  cubin.registers = 77;
  cubin.stack_bytes = 24;
  cubin.param_bytes = 320;
  cubin.code_bytes = 512;
  cubin.shared_bytes = 1280;
  return cubin;
}

TEST(Elf, TellsWhatTheTablesSayInBothAbiVersions) {
  for (const bool cuda13 : {false, true}) {
    test::MiniCubin cubin = sample();
    cubin.cuda13 = cuda13;
    const CubinFacts facts = read_cubin(cubin.bytes(), "a_kernel");
    EXPECT_EQ(facts.arch, 103);
    EXPECT_EQ(facts.registers, 77);
    EXPECT_EQ(facts.stack_bytes, 24u);
    EXPECT_EQ(facts.param_bytes, 320u);
    EXPECT_EQ(facts.code_bytes, 512u);
    EXPECT_EQ(facts.shared_bytes, 1280u);
  }
}

TEST(Elf, RefusesWhatIsNoCubin) {
  std::string host_program = sample().bytes();
  host_program[18] = 62;  // x86-64
  std::string bits32 = sample().bytes();
  bits32[4] = 1;
  for (const std::string& bytes :
       {std::string(), std::string("PTX text"), std::string(4096, '\0'), host_program, bits32}) {
    EXPECT_EQ(test::error_of([&] { (void)read_cubin(bytes, "a_kernel"); }).code(), Code::kInvalidInput);
  }
  EXPECT_NE(test::error_of([] { (void)read_cubin("", "k"); }).cause().find("empty"), std::string::npos);
}

TEST(Elf, RefusesACubinWithoutTheKernel) {
  const Error error = test::error_of([] { (void)read_cubin(sample().bytes(), "another_kernel"); });
  EXPECT_EQ(error.code(), Code::kInvalidInput);
  EXPECT_NE(error.cause().find("another_kernel"), std::string::npos);
}

TEST(Elf, RefusesEveryTruncation) {
  const std::string whole = sample().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW((void)read_cubin(whole.substr(0, size), "a_kernel"), Error) << size;
  }
}

TEST(Elf, SurvivesEveryDamagedByte) {
  const std::string whole = sample().bytes();
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        (void)read_cubin(damaged, "a_kernel");
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);  // offsets, sizes and names; the rest changes facts or code only
}

}  // namespace
}  // namespace commfuse::runtime
