// From source text to machine code, with NVRTC.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commfuse/spec.hpp"
#include "runtime/elf.hpp"
#include "runtime/nvrtc.hpp"
#include "runtime/templates_embed.hpp"

namespace commfuse::runtime {

/// One translation unit. All of its headers are in memory, so nothing on disk changes what is compiled.
struct Program {
  std::string name;  ///< of its one kernel; also its file name in diagnostics
  std::string source;
  std::string arch;    ///< "sm_90a"
  std::string origin;  ///< what it was made from, for messages: the spec's JSON
  std::span<const EmbeddedTemplate> headers;
};

/// The program of a kernel, with the embedded templates as its headers. Throws as KernelSpec::validate does.
[[nodiscard]] Program program_of(const KernelSpec& spec);

/// Milliseconds. The phases are those that NVRTC reports, and 0 where it does not (before 12.4; beside a warning).
struct CompileTimes {
  double total = 0;
  double front_end = 0;
  double optimizer = 0;
  double assembler = 0;
};

struct CompiledKernel {
  std::string cubin;
  std::string log;  ///< warnings; usually empty
  CompileTimes times;
  CubinFacts facts;
  std::uint32_t spill_store_bytes = 0;  ///< per thread
  std::uint32_t spill_load_bytes = 0;
};

/// The options that a program is compiled with, in order: a function of these two alone, because they are part of the
/// cache key and the key must be the same on every machine that has the same NVRTC.
[[nodiscard]] std::vector<std::string> compile_options(NvrtcVersion version, std::string_view arch);

/// Compiles. Throws Error(kUnsupported) where this NVRTC does not know the architecture, Error(kCompiler) whose cause
/// holds NVRTC's log, the options and the program's origin, Error(kNotFound) where the builtins library is missing, or
/// Error(kOutOfMemory). An answer without machine code for this kernel is an error, whatever NVRTC says about success.
/// Any thread; several programs compile at the same time.
[[nodiscard]] CompiledKernel compile(const Nvrtc& nvrtc, const Program& program);

/// Which build this NVRTC is: "13.0.88 CL-36424714". The version number that it tells (13.0) covers several builds,
/// which compile differently; the comments at the head of its PTX tell them apart. Compiles an empty program. Throws
/// Error(kCompiler).
[[nodiscard]] std::string probe_build(const Nvrtc& nvrtc);

/// Programs that this process has given to NVRTC so far, probes included.
[[nodiscard]] std::uint64_t nvrtc_calls() noexcept;

}  // namespace commfuse::runtime
