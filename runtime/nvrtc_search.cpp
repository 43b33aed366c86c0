#include "runtime/nvrtc_search.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

namespace commfuse::runtime {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split_path(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(':'), list.size());
    // An empty element means the current directory to the dynamic loader. Loading code from wherever the process was
    // started is how planted libraries run, so it and relative paths are passed over.
    if (end > 0 && list.front() == '/') parts.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return parts;
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

/// The folder of the file that this code was loaded from: the shared library, or the program it is linked into.
std::string own_folder() {
  Dl_info info{};
  std::error_code error;
  fs::path file;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0 && info.dli_fname != nullptr) {
    file = info.dli_fname;
  }
  // For a program this is argv[0], which need not be a path.
  if (!file.is_absolute()) file = fs::read_symlink("/proc/self/exe", error);
  const fs::path resolved = fs::canonical(file, error);
  return error ? std::string() : resolved.parent_path().string();
}

class Search {
 public:
  void look_in_folder(const std::string& folder, const std::string& origin, bool must_be_ours = false) {
    places_.looked_at.push_back(folder);
    std::vector<std::string> files = matches(folder + "/libnvrtc.so.[0-9]*");
    for (std::string& file : matches(folder + "/libnvrtc.so")) files.push_back(std::move(file));
    for (const std::string& file : files) add(file, origin, must_be_ours);
  }

  void look_in_folders(const std::string& pattern, const std::string& origin) {
    places_.looked_at.push_back(pattern);
    for (const std::string& folder : matches(pattern)) {
      const std::size_t index = places_.looked_at.size();
      look_in_folder(folder, origin);
      places_.looked_at.resize(index);
    }
  }

  void add(const std::string& file, const std::string& origin, bool must_be_ours = false) {
    struct stat status {};
    if (stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    // A folder that nobody named may have been made by anyone (think of a program that runs from /tmp/x/bin).
    if (must_be_ours && status.st_uid != 0 && status.st_uid != geteuid()) return;
    if (!seen_.emplace(status.st_dev, status.st_ino).second) return;
    std::error_code error;
    const fs::path resolved = fs::canonical(file, error);
    places_.candidates.push_back({error ? file : resolved.string(), origin});
  }

  void add_bare_name(const std::string& name) {
    places_.looked_at.push_back("the dynamic loader's path (" + name + ")");
    places_.candidates.push_back({name, "the dynamic loader"});
  }

  void note(std::string place) { places_.looked_at.push_back(std::move(place)); }
  [[nodiscard]] bool empty() const { return places_.candidates.empty(); }
  [[nodiscard]] NvrtcPlaces take() { return std::move(places_); }

 private:
  NvrtcPlaces places_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

void look_in_toolkit(Search& search, const Env& env) {
  for (const std::string& home : split_path(env.cuda_home)) {
    for (const char* sub : {"/lib64", "/lib", "/targets/x86_64-linux/lib", "/targets/sbsa-linux/lib"}) {
      search.look_in_folder(home + sub, "CUDA_HOME");
    }
  }
  search.look_in_folder("/usr/local/cuda/lib64", "/usr/local/cuda");
  search.look_in_folders("/usr/local/cuda-*/lib64", "/usr/local/cuda-*");
}

void look_in_private_folders(Search& search, const Env& env) {
  if (const std::string folder = own_folder(); !folder.empty()) {
    // One level up for <prefix>/bin, two for <prefix>/lib/<triplet> and for build trees.
    const fs::path up = fs::path(folder).parent_path();
    for (const fs::path& prefix : {up, up.parent_path()}) {
      search.look_in_folder((prefix / "lib/commfuse/cuda/lib").string(), "the private CUDA folder", true);
    }
  }
  std::string data = env.xdg_data_home;
  if (data.empty() && !env.home.empty()) data = env.home + "/.local/share";
  if (data.starts_with('/')) search.look_in_folder(data + "/commfuse/cuda/lib", "the private CUDA folder", true);
}

void look_in_packages(Search& search, const Env& env) {
  std::vector<std::string> roots;
  if (env.virtual_env.starts_with('/')) roots.push_back(env.virtual_env + "/lib/python3*/site-packages");
  if (env.conda_prefix.starts_with('/')) {
    search.look_in_folder(env.conda_prefix + "/lib", "CONDA_PREFIX");
    search.look_in_folder(env.conda_prefix + "/targets/x86_64-linux/lib", "CONDA_PREFIX");
    roots.push_back(env.conda_prefix + "/lib/python3*/site-packages");
  }
  if (env.home.starts_with('/')) roots.push_back(env.home + "/.local/lib/python3*/site-packages");
  roots.emplace_back("/usr/local/lib/python3*/site-packages");
  roots.emplace_back("/usr/local/lib/python3*/dist-packages");
  for (const std::string& root : roots) {
    search.look_in_folders(root + "/nvidia/cu1[2-9]/lib", "a Python package");
    search.look_in_folders(root + "/nvidia/cuda_nvrtc/lib", "a Python package");
  }
}

}  // namespace

NvrtcPlaces find_nvrtc(const Env& env) {
  Search search;
  if (!env.nvrtc.empty()) {
    std::error_code error;
    if (fs::is_directory(env.nvrtc, error)) {
      search.look_in_folder(env.nvrtc, "COMMFUSE_NVRTC");
    } else {
      search.note(env.nvrtc);
      search.add(env.nvrtc, "COMMFUSE_NVRTC");
    }
    return search.take();
  }
  if (!env.ignore_toolkit) look_in_toolkit(search, env);
  look_in_private_folders(search, env);
  look_in_packages(search, env);
  for (const std::string& folder : split_path(env.ld_library_path)) {
    if (env.ignore_toolkit && folder.starts_with("/usr/local/cuda")) continue;
    search.look_in_folder(folder, "LD_LIBRARY_PATH");
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    search.look_in_folder(folder, "the system's libraries");
  }
  if (search.empty() && !env.ignore_toolkit) {
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) search.add_bare_name(name);
  }
  return search.take();
}

}  // namespace commfuse::runtime
