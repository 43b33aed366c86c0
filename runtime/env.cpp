#include "runtime/env.hpp"

#include <charconv>
#include <cstdlib>
#include <variant>

#include "runtime/log.hpp"

namespace commfuse {
namespace {

struct Field {
  const char* name;
  std::variant<std::string Env::*, int Env::*, bool Env::*> member;
  const char* meaning;
};

constexpr Field kFields[] = {
    {"COMMFUSE_CACHE_DIR", &Env::cache_dir, "where compiled kernels are stored and looked for first"},
    {"COMMFUSE_CACHE_READONLY", &Env::cache_readonly, "more cache folders, separated by ':', never written"},
    {"COMMFUSE_NVRTC", &Env::nvrtc, "libnvrtc or its folder; no other place is looked at"},
    {"COMMFUSE_LIBCUDA", &Env::libcuda, "the driver library, instead of the system's libcuda.so.1"},
    {"CUDA_HOME", &Env::cuda_home, "the CUDA toolkit, looked at before /usr/local/cuda"},
    {"COMMFUSE_JOBS", &Env::jobs, "compilations at a time; 0 = one per core, bounded by free memory"},
    {"COMMFUSE_IGNORE_TOOLKIT", &Env::ignore_toolkit, "1 = as if there were no CUDA toolkit on this machine"},
    {"XDG_CACHE_HOME", &Env::xdg_cache_home, "holds the cache folder when COMMFUSE_CACHE_DIR is not set"},
    {"XDG_DATA_HOME", &Env::xdg_data_home, "holds commfuse/cuda, the private CUDA libraries"},
    {"HOME", &Env::home, "the user's folder"},
    {"LD_LIBRARY_PATH", &Env::ld_library_path, "folders that are looked in for libnvrtc"},
    {"VIRTUAL_ENV", &Env::virtual_env, "Python environment that is looked in for libnvrtc"},
    {"CONDA_PREFIX", &Env::conda_prefix, "conda environment that is looked in for libnvrtc"},
};

constexpr const char* kSecret = "COMMFUSE_EXCHANGE_KEY";

// Ours too, but not fields of Env: the parts that obey these take the environment as an argument.
constexpr Field kPassedFields[] = {
    {"COMMFUSE_CACHE_TRUST", {}, "cache folders, separated by ':', that are used whoever can write to them"},
    {"COMMFUSE_CACHE_MAX_BYTES", {}, "most that the cache folder may hold (2GiB); 500MiB, 0 = no bound"},
    {"XDG_RUNTIME_DIR", {}, "where processes of one machine lock and meet"},
    {"COMMFUSE_EXCHANGE", {}, "how ranks find each other"},
    {"COMMFUSE_EXCHANGE_ADDRESS", {}, "host of rank 0, for the exchange over TCP"},
    {"COMMFUSE_EXCHANGE_PORT", {}, "port of rank 0, for the exchange over TCP"},
    {"COMMFUSE_EXCHANGE_LISTEN", {}, "address that rank 0 listens on"},
    {"COMMFUSE_EXCHANGE_DIR", {}, "folder of the sockets that ranks of one machine meet at"},
    {"COMMFUSE_EXCHANGE_JOB", {}, "name that keeps jobs of one user apart"},
    {kSecret, {}, "the secret that the ranks share (not shown)"},
    {"COMMFUSE_EXCHANGE_KEY_FILE", {}, "file that holds the secret"},
};

constexpr Field kForeignFields[] = {
    {"CUDA_VISIBLE_DEVICES", {}, "driver: which devices exist for this process"},
    {"CUDA_MODULE_LOADING", {}, "driver: LAZY or EAGER; commfuse loads its kernels at warm-up either way"},
    {"CUDA_LAUNCH_BLOCKING", {}, "driver: 1 makes every launch wait, which deadlocks kernels that wait for peers"},
    {"CUDA_CACHE_DISABLE", {}, "driver and NVRTC: no cache of their own"},
    {"CUDA_MPS_PIPE_DIRECTORY", {}, "driver: the MPS server to share the device through"},
    {"NVRTC_DISABLE_CONCURRENT_NVVM", {}, "NVRTC: compile one program at a time"},
    {"NVRTC_INTERNAL_GLOBAL_LOCK", {}, "NVRTC: compile one program at a time"},
    {"NVRTC_APPEND_FLAGS", {}, "NVRTC: more options"},
};

void assign(std::string& target, const char*, const char* text) { target = text; }

void assign(bool& target, const char*, const char* text) {
  const std::string_view value = text;
  target = !(value.empty() || value == "0" || value == "off" || value == "false" || value == "no");
}

void assign(int& target, const char* name, const char* text) {
  const std::string_view value = text;
  if (value.empty()) return;
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 0) {
    log(LogLevel::kWarning, std::string(name) + "='" + text + "' is not a number from 0 up and was ignored");
    return;
  }
  target = number;
}

}  // namespace

Env Env::from_process() {
  Env result;
  for (const Field& field : kFields) {
    const char* text = std::getenv(field.name);
    if (text == nullptr) continue;
    std::visit([&](auto member) { assign(result.*member, field.name, text); }, field.member);
  }
  return result;
}

const Env& env() {
  static const Env instance = Env::from_process();
  return instance;
}

std::vector<EnvVariable> list_environment() {
  std::vector<EnvVariable> rows;
  const auto add = [&](const Field& field) {
    const char* text = std::getenv(field.name);
    const bool shown = text != nullptr && field.name != std::string_view(kSecret);
    rows.push_back({field.name, shown ? text : "", text != nullptr, field.meaning});
  };
  for (const Field& field : kFields) add(field);
  for (const Field& field : kPassedFields) add(field);
  for (const Field& field : kForeignFields) add(field);
  return rows;
}

}  // namespace commfuse
