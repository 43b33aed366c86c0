// Any bytes as a deployment file: they end in a deployment that keeps its promises or in Error(kInvalidInput).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "commfuse/error.hpp"
#include "commfuse/spec.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto deployment = commfuse::Deployment::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    const auto specs = deployment.kernels({"sm_90a"});  // validates every spec
    constexpr std::size_t kMostShapes = 4096;
    constexpr std::size_t kMostGeometries = 4;
    if (specs.empty() || specs.size() > kMostShapes * kMostGeometries) std::abort();
  } catch (const commfuse::Error& error) {
    if (error.code() != commfuse::Code::kInvalidInput || error.cause().empty()) std::abort();
  }
  return 0;
}
