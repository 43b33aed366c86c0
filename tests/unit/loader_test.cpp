#include "runtime/loader.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "commfuse/planner.hpp"
#include "device/params.cuh"
#include "jit_support.hpp"
#include "runtime/driver.hpp"
#include "shims/mini_cubin.hpp"

namespace commfuse::runtime {
namespace {

class Loader : public testing::Test {
 protected:
  Loader() : shim_(test::reset_cuda_shim()) { shim_.param_bytes = sizeof(device::AllReduceParams); }

  [[nodiscard]] std::string cubin(const KernelSpec& spec = test::small_spec()) const {
    test::MiniCubin mini;
    mini.kernel = spec.name();
    mini.param_bytes = sizeof(device::AllReduceParams);
    return mini.bytes();
  }
  [[nodiscard]] Error error() const {
    return test::error_of([&] { (void)load_kernel(test::small_spec(), "key", cubin()); });
  }
  [[nodiscard]] bool called(const char* call) const { return std::strstr(shim_.calls, call) != nullptr; }

  test::CudaShim& shim_;
};

TEST_F(Loader, LoadsOntoTheDeviceAndUnloadsWithTheImage) {
  {
    const KernelImage image = load_kernel(test::small_spec(), "key", cubin());
    EXPECT_NE(image.function, nullptr);
    EXPECT_EQ(image.spec, test::small_spec());
    EXPECT_EQ(image.key, "key");
    EXPECT_EQ(image.registers, 40);
    EXPECT_TRUE(called("cuFuncLoad"));
    EXPECT_TRUE(called("cuKernelGetParamInfo"));
    EXPECT_FALSE(called("cuOccupancyMaxActiveClusters"));
    EXPECT_EQ(shim_.libraries, 1);
  }
  EXPECT_EQ(shim_.libraries, 0);
}

TEST_F(Loader, MovesKeepOneOwner) {
  KernelImage first = load_kernel(test::small_spec(), "a", cubin());
  KernelImage second = std::move(first);
  EXPECT_EQ(shim_.libraries, 1);
  second = load_kernel(test::small_spec(), "b", cubin());
  first = KernelImage{};
  EXPECT_EQ(shim_.libraries, 1);
}

TEST_F(Loader, RefusesAKernelWithAnotherParameterBlock) {
  shim_.param_bytes -= 8;
  EXPECT_EQ(error().code(), Code::kMismatch);
  shim_.param_bytes += 8;
  shim_.param_offset = 4;
  EXPECT_EQ(error().code(), Code::kMismatch);
  shim_.param_offset = 0;

  test::MiniCubin mini;  // the tables tell it too, for drivers that do not
  mini.kernel = test::small_spec().name();
  mini.param_bytes = sizeof(device::AllReduceParams) - 8;
  const Error error = test::error_of([&] { (void)load_kernel(test::small_spec(), "key", mini.bytes()); });
  EXPECT_EQ(error.code(), Code::kMismatch);
  EXPECT_EQ(shim_.libraries, 0);  // whatever was loaded is unloaded again
}

TEST_F(Loader, RefusesAKernelOfWhichFewerBlocksFitThanThePlannerCountsOn) {
  shim_.blocks_per_sm = resident_blocks_per_sm(test::small_spec().threads);
  EXPECT_NO_THROW((void)load_kernel(test::small_spec(), "key", cubin()));
  --shim_.blocks_per_sm;
  const Error too_big = error();
  EXPECT_EQ(too_big.code(), Code::kMismatch);
  EXPECT_NE(too_big.cause().find("40 registers"), std::string::npos);
}

TEST_F(Loader, RefusesAClusterThatDoesNotFit) {
  KernelSpec spec = test::small_spec();
  spec.cluster = 8;
  EXPECT_NO_THROW((void)load_kernel(spec, "key", cubin(spec)));
  EXPECT_TRUE(called("cuOccupancyMaxActiveClusters"));
  shim_.clusters = 0;
  EXPECT_EQ(test::error_of([&] { (void)load_kernel(spec, "key", cubin(spec)); }).code(), Code::kMismatch);
}

TEST_F(Loader, SaysWhichKernelTheDriverRefused) {
  shim_.load_result = CUDA_ERROR_INVALID_IMAGE;
  const Error refused = error();
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_NE(std::string(refused.what()).find("which is for CUDA 13.0"), std::string::npos);
  EXPECT_NE(refused.message().find(test::small_spec().name()), std::string::npos);
  EXPECT_NE(refused.cause().find("CUDA_ERROR_INVALID_IMAGE"), std::string::npos);
}

TEST_F(Loader, LoadsWhileAStreamIsBeingCapturedAndRestoresTheMode) {
  shim_.capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  (void)load_kernel(test::small_spec(), "key", cubin());
  EXPECT_TRUE(shim_.always_relaxed_when_loading);
  EXPECT_EQ(shim_.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  shim_.load_result = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_EQ(error().code(), Code::kOutOfMemory);
  EXPECT_EQ(shim_.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

}  // namespace
}  // namespace commfuse::runtime
