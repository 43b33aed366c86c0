#include "runtime/compiler.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>

#include "commfuse/error.hpp"
#include "runtime/generator.hpp"

namespace commfuse::runtime {
namespace {

/// A template error in a big program can fill megabytes; the first lines are the ones that matter.
constexpr std::size_t kMaxLogInError = 32 * 1024;

std::atomic<std::uint64_t> g_nvrtc_calls{0};

/// Owns an NVRTC program.
class NvrtcProgram {
 public:
  NvrtcProgram(const Nvrtc& nvrtc, const Program& program) : api_(nvrtc.functions()) {
    std::vector<const char*> names;
    std::vector<const char*> texts;
    for (const EmbeddedTemplate& header : program.headers) {
      names.push_back(header.name.data());
      texts.push_back(header.text.data());
    }
    const nvrtcResult result = api_.nvrtcCreateProgram(&handle_, program.source.c_str(), program.name.c_str(),
                                                       static_cast<int>(names.size()), texts.data(), names.data());
    if (result != NVRTC_SUCCESS) {
      throw Error(Code::kCompiler, fmt::format("cannot create the program '{}'", program.name),
                  api_.nvrtcGetErrorString(result));
    }
  }
  NvrtcProgram(const NvrtcProgram&) = delete;
  NvrtcProgram& operator=(const NvrtcProgram&) = delete;
  ~NvrtcProgram() { api_.nvrtcDestroyProgram(&handle_); }

  [[nodiscard]] nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    g_nvrtc_calls.fetch_add(1, std::memory_order_relaxed);
    return api_.nvrtcCompileProgram(handle_, static_cast<int>(pointers.size()), pointers.data());
  }

  [[nodiscard]] std::string log() const { return text(api_.nvrtcGetProgramLogSize, api_.nvrtcGetProgramLog); }
  [[nodiscard]] std::string ptx() const { return text(api_.nvrtcGetPTXSize, api_.nvrtcGetPTX); }
  [[nodiscard]] std::string cubin() const { return bytes(api_.nvrtcGetCUBINSize, api_.nvrtcGetCUBIN); }

 private:
  using Size = nvrtcResult (*)(nvrtcProgram, std::size_t*);
  using Bytes = nvrtcResult (*)(nvrtcProgram, char*);

  /// Empty on any failure: whether that is an error depends on what was asked for.
  [[nodiscard]] std::string bytes(Size size_of, Bytes get) const {
    std::size_t size = 0;
    if (size_of(handle_, &size) != NVRTC_SUCCESS || size == 0) return {};
    std::string result(size, '\0');
    return get(handle_, result.data()) == NVRTC_SUCCESS ? result : std::string();
  }
  [[nodiscard]] std::string text(Size size_of, Bytes get) const {
    std::string result = bytes(size_of, get);
    result.resize(std::min(result.find('\0'), result.size()));
    return result;
  }

  const Nvrtc::Functions& api_;
  nvrtcProgram handle_ = nullptr;
};

void require_arch(const Nvrtc& nvrtc, const Program& program) {
  const int wanted = arch_number(program.arch);
  const std::vector<int>& known = nvrtc.archs();
  if (std::binary_search(known.begin(), known.end(), wanted)) return;
  throw Error(
      Code::kUnsupported, fmt::format("cannot compile '{}' for {}", program.name, program.arch),
      fmt::format("NVRTC {} ({}) supports sm_{}", nvrtc.version().text(), nvrtc.path(), fmt::join(known, ", sm_")),
      "Install a CUDA version that supports it, or set COMMFUSE_NVRTC to its libnvrtc.so");
}

[[noreturn]] void throw_compile_error(const Nvrtc& nvrtc, const Program& program, nvrtcResult result, std::string log,
                                      const std::vector<std::string>& options) {
  const std::string what = fmt::format("cannot compile '{}' for {}", program.name, program.arch);
  const std::string name = nvrtc.functions().nvrtcGetErrorString(result);
  if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE && !nvrtc.builtins_problem().empty()) {
    throw Error(Code::kNotFound, what, nvrtc.builtins_problem(),
                fmt::format("Put it beside '{}', or set COMMFUSE_NVRTC to an NVRTC that has it", nvrtc.path()));
  }
  if (log.size() > kMaxLogInError) {
    log.resize(kMaxLogInError);
    log += "\n[...]";
  }
  if (!log.empty() && !log.ends_with('\n')) log += '\n';
  throw Error(result == NVRTC_ERROR_OUT_OF_MEMORY ? Code::kOutOfMemory : Code::kCompiler, what,
              fmt::format("NVRTC {} ({}) says {}\n{}options: {}\nmade from: {}\n", nvrtc.version().text(), nvrtc.path(),
                          name, log, fmt::join(options, " "), program.origin));
}

/// Takes the table that --time=- appends to the log out of it.
CompileTimes take_times(std::string& log) {
  CompileTimes times;
  std::string rest;
  std::string_view left = log;
  while (!left.empty()) {
    const std::string_view line = left.substr(0, std::min(left.find('\n'), left.size() - 1) + 1);
    left.remove_prefix(line.size());
    const auto read = [&](std::string_view phase, double& target) {
      const std::size_t at = line.find(phase);
      if (at == std::string_view::npos) return false;
      target = std::strtod(std::string(line.substr(at + phase.size())).c_str(), nullptr);
      return true;
    };
    if (read(", CUDA C++ Frontend, ", times.front_end)) continue;
    if (read(", NVVM Optimizer, ", times.optimizer)) continue;
    if (read(", PTX Translation, ", times.assembler)) continue;
    if (line.starts_with("File name, phase name")) continue;
    rest += line;
  }
  log = rest.find_first_not_of(" \n") == std::string::npos ? std::string() : rest;
  return times;
}

/// The number before `unit` in the assembler's warning about spilled registers; 0 where there is none.
std::uint32_t spilled(std::string_view log, std::string_view unit) {
  std::size_t at = log.find(unit);
  if (at == std::string_view::npos) return 0;
  const std::size_t end = at;
  while (at > 0 && log[at - 1] >= '0' && log[at - 1] <= '9') --at;
  std::uint32_t bytes = 0;
  std::from_chars(log.data() + at, log.data() + end, bytes);
  return bytes;
}

/// What follows `label` up to the end of its line.
std::string_view rest_of_line(std::string_view text, std::string_view label) {
  const std::size_t at = text.find(label);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + label.size());
  return text.substr(0, text.find('\n'));
}

}  // namespace

Program program_of(const KernelSpec& spec) {
  spec.validate();
  return {spec.name(), render_source(spec), spec.arch, spec.to_json(), embedded_templates()};
}

std::vector<std::string> compile_options(NvrtcVersion version, std::string_view arch) {
  std::vector<std::string> options = {
      fmt::format("--gpu-architecture={}", arch),
      "--std=c++20",
      // The order of rounding is part of an operation's contract; fused operations are written out where they are
      // meant.
      "--fmad=false",
      // With neither a folder of its own nor -I, NVRTC has nowhere on disk to look: the key covers all that it reads.
      "--no-source-include",
      // The default changes the stack limit of the whole process, which is somebody's engine.
      "--modify-stack-limit=false",
      "--ptxas-options=--warn-on-spills",
  };
  // Precompiled headers would buy nothing: all headers together take NVRTC less time than opening such a file.
  if (version >= NvrtcVersion{12, 4}) {
    options.emplace_back("--minimal");
    options.emplace_back("--time=-");
  }
  // NVRTC's own cache returns no log.
  if (version >= NvrtcVersion{12, 9}) options.emplace_back("--no-cache");
  return options;
}

CompiledKernel compile(const Nvrtc& nvrtc, const Program& program) {
  require_arch(nvrtc, program);
  const std::vector<std::string> options = compile_options(nvrtc.version(), program.arch);
  const auto start = std::chrono::steady_clock::now();
  NvrtcProgram handle(nvrtc, program);
  const nvrtcResult result = handle.compile(options);
  CompiledKernel kernel;
  kernel.log = handle.log();
  kernel.times = take_times(kernel.log);
  if (result != NVRTC_SUCCESS) throw_compile_error(nvrtc, program, result, std::move(kernel.log), options);

  kernel.cubin = handle.cubin();
  try {
    kernel.facts = read_cubin(kernel.cubin, program.name);
    if (kernel.facts.arch != arch_number(program.arch)) {
      throw Error(Code::kInvalidInput, "cannot use a compiled kernel",
                  fmt::format("it is for sm_{}, not {}", kernel.facts.arch, program.arch));
    }
  } catch (const Error& error) {
    throw Error(
        Code::kCompiler, fmt::format("cannot compile '{}' for {}", program.name, program.arch),
        fmt::format("NVRTC {} ({}) reports success, but {}\noptions: {}\nmade from: {}\n", nvrtc.version().text(),
                    nvrtc.path(), error.cause(), fmt::join(options, " "), program.origin),
        "Check that libnvrtc is complete");
  }
  kernel.spill_store_bytes = spilled(kernel.log, " bytes spill stores");
  kernel.spill_load_bytes = spilled(kernel.log, " bytes spill loads");
  kernel.times.total = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return kernel;
}

std::string probe_build(const Nvrtc& nvrtc) {
  const Program program{
      "probe", "", fmt::format("compute_{}", nvrtc.archs().empty() ? 90 : nvrtc.archs().back()), "", {}};
  const std::vector<std::string> options = {fmt::format("--gpu-architecture={}", program.arch)};
  NvrtcProgram handle(nvrtc, program);
  const nvrtcResult result = handle.compile(options);
  if (result != NVRTC_SUCCESS) throw_compile_error(nvrtc, program, result, handle.log(), options);
  const std::string ptx = handle.ptx();
  // "// Compiler Build ID: CL-36424714" and "// Cuda compilation tools, release 13.0, V13.0.88"
  const std::string_view build = rest_of_line(ptx, "Compiler Build ID: ");
  std::string_view version = rest_of_line(ptx, "Cuda compilation tools, release ");
  version.remove_prefix(std::min(version.find('V') + 1, version.size()));
  if (build.empty() || version.empty()) {
    throw Error(Code::kCompiler,
                fmt::format("cannot tell which build NVRTC {} ({}) is", nvrtc.version().text(), nvrtc.path()),
                "its PTX does not begin with the usual comments", "Set COMMFUSE_NVRTC to another libnvrtc.so");
  }
  return fmt::format("{} {}", version, build);
}

std::uint64_t nvrtc_calls() noexcept { return g_nvrtc_calls.load(std::memory_order_relaxed); }

}  // namespace commfuse::runtime
