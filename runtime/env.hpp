// The environment variables that commfuse obeys, read once per process, and the list of all that matter to it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace commfuse {

struct Env {
  /// COMMFUSE_CACHE_DIR: the folder where compiled kernels are stored and looked for first.
  std::string cache_dir;
  /// COMMFUSE_CACHE_READONLY: more folders to look in, in order, separated by ':'; never written.
  std::string cache_readonly;
  /// COMMFUSE_NVRTC: libnvrtc, or the folder that holds it. The only place that is looked at when it is set.
  std::string nvrtc;
  /// COMMFUSE_LIBCUDA: the driver library, instead of the system's libcuda.so.1.
  std::string libcuda;
  /// CUDA_HOME: the CUDA toolkit, looked at before /usr/local/cuda.
  std::string cuda_home;
  /// COMMFUSE_JOBS: compilations at a time; 0 or unset = one per core, bounded by free memory.
  int jobs = 0;
  /// COMMFUSE_IGNORE_TOOLKIT: behave as if there were neither CUDA_HOME nor /usr/local/cuda.
  bool ignore_toolkit = false;
  /// XDG_CACHE_HOME: where the cache folder is made when COMMFUSE_CACHE_DIR is not set (else ~/.cache).
  std::string xdg_cache_home;
  /// XDG_DATA_HOME: holds commfuse/cuda, the private CUDA libraries of a machine without a toolkit (else
  /// ~/.local/share).
  std::string xdg_data_home;
  /// HOME: the user's folder.
  std::string home;
  /// LD_LIBRARY_PATH: folders, separated by ':', that are looked in for libnvrtc as the dynamic loader would.
  std::string ld_library_path;
  /// VIRTUAL_ENV: a Python environment whose nvidia-cuda-nvrtc package is looked in for libnvrtc.
  std::string virtual_env;
  /// CONDA_PREFIX: a conda environment that is looked in for libnvrtc.
  std::string conda_prefix;

  /// Reads the variables. A value that cannot be used counts as not set, with a warning in the log.
  [[nodiscard]] static Env from_process();
};

/// The variables as they were when this was first called.
[[nodiscard]] const Env& env();

/// One row of `commfuse doctor`.
struct EnvVariable {
  std::string_view name;
  std::string value;
  bool set = false;
  std::string_view meaning;
};

/// The variables above, those that other parts of the library are passed, then those of others that change what CUDA
/// does under us (read by the driver and by NVRTC). The values of secrets are left out.
[[nodiscard]] std::vector<EnvVariable> list_environment();

}  // namespace commfuse
