// What can be known about a cubin without CUDA: it is an ELF file.
#pragma once

#include <string>
#include <string_view>

namespace commfuse::cache {

/// Verdict on bytes that should be a cubin for `arch` ("sm_90a").
struct CubinCheck {
  enum class Result : int { kGood, kNotCubin, kWrongArch };
  Result result = Result::kGood;
  std::string detail;
};

/// Checks the ELF header, that every table and section lies within the file (each truncation breaks that, because NVRTC
/// writes the program headers last), and the architecture number in the header's flags where their layout is known. The
/// letter of an architecture is not in the flags.
[[nodiscard]] CubinCheck check_cubin(std::string_view cubin, std::string_view arch);

}  // namespace commfuse::cache
