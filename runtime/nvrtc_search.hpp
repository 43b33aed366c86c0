// Where NVRTC may lie on this machine.
#pragma once

#include <string>
#include <vector>

#include "runtime/env.hpp"

namespace commfuse::runtime {

/// Everything that was looked at, for the message when nothing fits, and what was found there.
struct NvrtcPlaces {
  struct Candidate {
    std::string path;    ///< absolute and without links, or a bare name for the dynamic loader
    std::string origin;  ///< which rule found it: "COMMFUSE_NVRTC", "CUDA_HOME" ...
  };
  std::vector<Candidate> candidates;  ///< in the order of the places; every file once
  std::vector<std::string> looked_at;
};

/// Looks, in this order, in COMMFUSE_NVRTC (and then nowhere else), CUDA_HOME, /usr/local/cuda*, the private folders
/// that scripts/install_deps.sh and packages fill (lib/commfuse/cuda beside or above the running program or library,
/// and $XDG_DATA_HOME/commfuse/cuda), the nvidia packages of a Python environment, conda, LD_LIBRARY_PATH and the
/// system's library folders. Only where all of that holds nothing is the dynamic loader asked by name. Opens no
/// library.
[[nodiscard]] NvrtcPlaces find_nvrtc(const Env& env);

}  // namespace commfuse::runtime
