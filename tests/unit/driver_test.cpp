#include "runtime/driver.hpp"

#include <gtest/gtest.h>

#include "jit_support.hpp"

namespace commfuse::runtime {
namespace {

Env with_libcuda(const std::string& path) {
  Env env;
  env.libcuda = path;
  return env;
}

TEST(Driver, OpensTheLibraryThatIsNamedAndLooksUpEveryCall) {
  test::reset_cuda_shim();
  const Driver driver = Driver::open(with_libcuda(COMMFUSE_CUDA_SHIM));
  EXPECT_EQ(driver.version(), 13000);
#define COMMFUSE_EXPECT(name, version, need) EXPECT_NE(driver.name, nullptr) << #name;
  COMMFUSE_DRIVER_FUNCTIONS(COMMFUSE_EXPECT)
#undef COMMFUSE_EXPECT
}

TEST(Driver, AMissingLibraryIsNamed) {
  const Error error = test::error_of([] { (void)Driver::open(with_libcuda("/nonexistent/libcuda.so.1")); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(error.cause().find("/nonexistent/libcuda.so.1"), std::string::npos);
}

TEST(Driver, ALibraryThatIsSomethingElseIsRefused) {
  const Error error = test::error_of([] { (void)Driver::open(with_libcuda(COMMFUSE_NVRTC_SHIM)); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(error.cause().find("cuDriverGetVersion"), std::string::npos);
}

TEST(Driver, OneThatIsTooOldIsRefusedWithItsVersion) {
  test::reset_cuda_shim().driver_version = 11080;
  const Error error = test::error_of([] { (void)Driver::open(with_libcuda(COMMFUSE_CUDA_SHIM)); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_NE(error.cause().find("11.8"), std::string::npos);
}

TEST(Driver, OneBeforeTwelveFourLacksWhatCanBeDoneWithout) {
  test::reset_cuda_shim().driver_version = 12020;
  const Driver driver = Driver::open(with_libcuda(COMMFUSE_CUDA_SHIM));
  EXPECT_EQ(driver.cuFuncLoad, nullptr);
  EXPECT_EQ(driver.cuKernelGetParamInfo, nullptr);
  EXPECT_NE(driver.cuLibraryLoadData, nullptr);
}

TEST(Driver, AnErrorNamesTheCallAndTheDriversWords) {
  test::reset_cuda_shim();
  (void)driver();
  const Error error = test::error_of([] { throw_driver_error(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc(&p, bytes)"); });
  EXPECT_EQ(error.code(), Code::kOutOfMemory);
  EXPECT_NE(error.message().find("cuMemAlloc(&p, bytes)"), std::string::npos);
  EXPECT_EQ(error.cause(), "CUDA_ERROR_OUT_OF_MEMORY (words of the driver)");
  EXPECT_EQ(test::error_of([] { throw_driver_error(CUDA_ERROR_INVALID_CONTEXT, "x"); }).cause(), "CUDA error 201");
}

TEST(Driver, TheMacrosThrowAndLogWithTheTextOfTheCall) {
  test::reset_cuda_shim();
  const Error error = test::error_of([] { COMMFUSE_DRIVER(cuCtxSynchronize()); });
  EXPECT_EQ(error.code(), Code::kUnsupported);  // the stand-in knows no such call
  EXPECT_NE(error.message().find("cuCtxSynchronize()"), std::string::npos);

  const test::LogCapture capture;
  COMMFUSE_DRIVER_NOEXCEPT(cuCtxSynchronize());
  ASSERT_EQ(capture.count(LogLevel::kWarning), 1);
  EXPECT_NE(capture.messages()[0].second.find("cuCtxSynchronize()"), std::string::npos);
}

}  // namespace
}  // namespace commfuse::runtime
