// A shared library opened at run time.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace commfuse::runtime {

/// Owns one dlopen handle; closes it when destroyed. Move-only.
class DynamicLibrary {
 public:
  /// Opens `name` (a path, or a bare name that the dynamic loader looks up) with its symbols kept private. Empty where
  /// that fails; `*error` then holds the loader's words.
  [[nodiscard]] static std::optional<DynamicLibrary> open(const std::string& name, std::string* error);

  DynamicLibrary(DynamicLibrary&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~DynamicLibrary();

  /// Address of a symbol, or null.
  [[nodiscard]] void* symbol(const char* name) const noexcept;

  /// The file that was opened, as the dynamic loader found it.
  [[nodiscard]] std::string path() const;

 private:
  explicit DynamicLibrary(void* handle) noexcept : handle_(handle) {}
  void* handle_;
};

}  // namespace commfuse::runtime
