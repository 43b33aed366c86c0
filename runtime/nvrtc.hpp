// NVRTC, opened at run time.
#pragma once

#include <nvrtc.h>

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/dynamic_library.hpp"

namespace commfuse::runtime {

struct NvrtcVersion {
  int major = 0;
  int minor = 0;
  [[nodiscard]] auto operator<=>(const NvrtcVersion&) const = default;
  [[nodiscard]] std::string text() const { return std::to_string(major) + '.' + std::to_string(minor); }
};

/// The oldest NVRTC that compiles our templates: the first that knows sm_90a.
inline constexpr NvrtcVersion kMinNvrtc{12, 0};

// Calls to NVRTC that commfuse makes.
#define COMMFUSE_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                   \
  X(nvrtcGetNumSupportedArchs)      \
  X(nvrtcGetSupportedArchs)         \
  X(nvrtcGetErrorString)            \
  X(nvrtcCreateProgram)             \
  X(nvrtcDestroyProgram)            \
  X(nvrtcCompileProgram)            \
  X(nvrtcGetProgramLogSize)         \
  X(nvrtcGetProgramLog)             \
  X(nvrtcGetCUBINSize)              \
  X(nvrtcGetCUBIN)                  \
  X(nvrtcGetPTXSize)                \
  X(nvrtcGetPTX)

/// One opened NVRTC. Immutable; its functions may be called from any thread.
class Nvrtc {
 public:
  struct Functions {
#define COMMFUSE_MEMBER(name) decltype(&::name) name = nullptr;
    COMMFUSE_NVRTC_FUNCTIONS(COMMFUSE_MEMBER)
#undef COMMFUSE_MEMBER
  };

  /// Opens `path` and asks for its version and architectures. Throws Error(kNotFound) where it cannot be opened or a
  /// function is missing, Error(kUnsupported) where it is older than kMinNvrtc.
  [[nodiscard]] static Nvrtc open(const std::string& path);

  /// Opens the builtins library beside NVRTC, which NVRTC itself would only look for in the loader's path. Where that
  /// fails, `builtins_problem` tells, in case NVRTC cannot do without.
  void load_builtins();

  [[nodiscard]] const Functions& functions() const noexcept { return functions_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] NvrtcVersion version() const noexcept { return version_; }
  /// Compute capabilities times ten, ascending.
  [[nodiscard]] const std::vector<int>& archs() const noexcept { return archs_; }
  [[nodiscard]] const std::string& builtins_problem() const noexcept { return builtins_problem_; }

 private:
  explicit Nvrtc(DynamicLibrary library) : library_(std::move(library)) {}

  DynamicLibrary library_;
  std::vector<DynamicLibrary> builtins_;
  Functions functions_;
  std::string path_;
  NvrtcVersion version_;
  std::vector<int> archs_;
  std::string builtins_problem_;
};

/// Where the builtins library of `version` would lie beside the NVRTC at `nvrtc_path`.
[[nodiscard]] std::string builtins_path(const std::string& nvrtc_path, NvrtcVersion version);

/// The number in "sm_90a"; 0 for a text that is no architecture.
[[nodiscard]] int arch_number(std::string_view arch) noexcept;

}  // namespace commfuse::runtime
