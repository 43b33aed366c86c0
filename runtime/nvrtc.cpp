#include "runtime/nvrtc.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "commfuse/error.hpp"

namespace commfuse::runtime {
namespace {

constexpr const char* kRemedy = "Install CUDA 12.4 or newer, or set COMMFUSE_NVRTC to its libnvrtc.so";

}  // namespace

Nvrtc Nvrtc::open(const std::string& path) {
  std::string words;
  auto library = DynamicLibrary::open(path, &words);
  if (!library) throw Error(Code::kNotFound, fmt::format("cannot open NVRTC '{}'", path), words, kRemedy);

  Nvrtc nvrtc(std::move(*library));
  nvrtc.path_ = nvrtc.library_.path();
  if (nvrtc.path_.empty()) nvrtc.path_ = path;
  const auto look_up = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(nvrtc.library_.symbol(name));
    if (function == nullptr) {
      throw Error(Code::kNotFound, fmt::format("cannot use '{}' as NVRTC", nvrtc.path_),
                  fmt::format("it has no function {}: another library, or one before CUDA 11.2", name), kRemedy);
    }
  };
#define COMMFUSE_LOOK_UP(name) look_up(#name, nvrtc.functions_.name);
  COMMFUSE_NVRTC_FUNCTIONS(COMMFUSE_LOOK_UP)
#undef COMMFUSE_LOOK_UP

  int count = 0;
  const bool answered = nvrtc.functions_.nvrtcVersion(&nvrtc.version_.major, &nvrtc.version_.minor) == NVRTC_SUCCESS &&
                        nvrtc.functions_.nvrtcGetNumSupportedArchs(&count) == NVRTC_SUCCESS && count >= 0 &&
                        count < 1000;
  if (answered) nvrtc.archs_.resize(static_cast<std::size_t>(count));
  if (!answered || nvrtc.functions_.nvrtcGetSupportedArchs(nvrtc.archs_.data()) != NVRTC_SUCCESS) {
    throw Error(Code::kNotFound, fmt::format("cannot use '{}' as NVRTC", nvrtc.path_),
                "it does not tell its version and architectures", kRemedy);
  }
  std::sort(nvrtc.archs_.begin(), nvrtc.archs_.end());
  if (nvrtc.version_ < kMinNvrtc) {
    throw Error(Code::kUnsupported, fmt::format("NVRTC '{}' is too old", nvrtc.path_),
                fmt::format("it is version {}, needed is {}; it supports sm_{}", nvrtc.version_.text(),
                            kMinNvrtc.text(), fmt::join(nvrtc.archs_, ", sm_")),
                kRemedy);
  }
  return nvrtc;
}

void Nvrtc::load_builtins() {
  if (!builtins_.empty()) return;
  const std::string beside = builtins_path(path_, version_);
  std::string words;
  if (auto library = DynamicLibrary::open(beside, &words)) {
    builtins_.push_back(std::move(*library));
    return;
  }
  const std::string name = std::filesystem::path(beside).filename();
  if (auto library = DynamicLibrary::open(name, nullptr)) {
    builtins_.push_back(std::move(*library));
    return;
  }
  builtins_problem_ =
      fmt::format("{} is missing: it lies neither beside NVRTC ({}) nor in the dynamic loader's path", name, words);
}

std::string builtins_path(const std::string& nvrtc_path, NvrtcVersion version) {
  return std::filesystem::path(nvrtc_path).parent_path() / ("libnvrtc-builtins.so." + version.text());
}

int arch_number(std::string_view arch) noexcept {
  if (!arch.starts_with("sm_")) return 0;
  int number = 0;
  std::from_chars(arch.data() + 3, arch.data() + arch.size(), number);
  return number;
}

}  // namespace commfuse::runtime
