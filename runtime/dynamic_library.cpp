#include "runtime/dynamic_library.hpp"

#include <dlfcn.h>
#include <link.h>

namespace commfuse::runtime {

std::optional<DynamicLibrary> DynamicLibrary::open(const std::string& name, std::string* error) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return DynamicLibrary(handle);
  const char* words = dlerror();
  if (error != nullptr) *error = words != nullptr ? words : "unknown error of the dynamic loader";
  return std::nullopt;
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* DynamicLibrary::symbol(const char* name) const noexcept { return dlsym(handle_, name); }

std::string DynamicLibrary::path() const {
  link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  return map->l_name;
}

}  // namespace commfuse::runtime
