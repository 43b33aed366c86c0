// What the tests of the way from a spec to a loaded kernel share.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "commfuse/engine.hpp"
#include "runtime/env.hpp"
#include "shims/cuda_shim.hpp"

namespace commfuse::test {

/// A folder that is removed with what it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "commfuse_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Sets a variable for the length of a test.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() { unsetenv(name_.c_str()); }

 private:
  std::string name_;
};

/// Collects the library's messages for the length of a test.
class LogCapture {
 public:
  LogCapture() {
    set_log_sink([this](LogLevel level, std::string_view message) {
      const std::scoped_lock lock(mutex_);
      messages_.emplace_back(level, message);
    });
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  ~LogCapture() { set_log_sink(nullptr); }

  [[nodiscard]] std::vector<std::pair<LogLevel, std::string>> messages() const {
    const std::scoped_lock lock(mutex_);
    return messages_;
  }
  [[nodiscard]] int count(LogLevel level) const {
    int number = 0;
    for (const auto& message : messages()) number += message.first == level ? 1 : 0;
    return number;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> messages_;
};

/// The stand-in for NVRTC (version 99.1, 12.1 or 11.1) as `folder`/libnvrtc.so.MAJOR. Every copy is a library of its
/// own.
inline std::string copy_nvrtc_shim(const std::filesystem::path& folder, int major = 99) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path file = folder / ("libnvrtc.so." + std::to_string(major));
  std::filesystem::copy_file(major == 99   ? COMMFUSE_NVRTC_SHIM
                             : major == 12 ? COMMFUSE_NVRTC12_SHIM
                                           : COMMFUSE_NVRTC11_SHIM,
                             file);
  return std::filesystem::canonical(file).string();
}

/// Whether this process has opened the library.
inline bool is_open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

/// An environment in which nothing but `nvrtc` is looked at.
inline Env only(const std::string& nvrtc) {
  Env environment;
  environment.nvrtc = nvrtc;
  return environment;
}

/// The stand-in for the driver, which this program runs with (jit_main.cpp), set to its defaults.
inline CudaShim& reset_cuda_shim() {
  static void* library = dlopen(COMMFUSE_CUDA_SHIM, RTLD_NOW);
  const auto get = reinterpret_cast<decltype(&commfuse_cuda_shim)>(dlsym(library, "commfuse_cuda_shim"));
  CudaShim& shim = *get();
  shim = CudaShim{};
  return shim;
}

/// A kernel that the stand-ins can compile and load.
inline KernelSpec small_spec(int hidden_size = 4096) {
  KernelSpec spec;
  spec.pattern = Pattern::kAllReduce;
  spec.hidden_size = hidden_size;
  spec.threads = 128;
  spec.arch = "sm_90a";
  return spec;
}

/// The Error that `call` throws; a failure of the test where it throws none.
template <typename Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return {Code::kOk, "none"};
}

}  // namespace commfuse::test
