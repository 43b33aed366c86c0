#include "bench/workload.hpp"

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "commfuse/planner.hpp"
#include "runtime/kernel_signature.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::bench {
namespace {

constexpr std::size_t kCubinBytes = 24 * 1024;  // about what these kernels take
constexpr unsigned kElfMachineCuda = 190;

/// Enough of an ELF file for sm_90a to be taken for one.
std::string filler_cubin() {
  std::string bytes(kCubinBytes, '\x5a');
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_EXEC;
  header.e_machine = kElfMachineCuda;
  header.e_version = EV_CURRENT;
  header.e_flags = 90U << 8 | 90U;
  header.e_ehsize = sizeof(header);
  // One section, the empty one that every ELF file starts with.
  const Elf64_Shdr section = {};
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(section);
  header.e_shnum = 1;
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + header.e_shoff, &section, sizeof(section));
  return bytes;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "commfuse-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Deployment deployment_of(int hidden_sizes) {
  Deployment deployment;
  deployment.name = "benchmark";
  deployment.world_size = 8;
  deployment.hidden_size = 8192;
  deployment.max_tokens = 8192;
  deployment.arch = {"sm_90a"};
  Deployment::Operation operation;
  operation.patterns = {Pattern::kAllReduce, Pattern::kResidualRmsNorm};
  operation.algorithms = {Algorithm::kOneShot, Algorithm::kTwoShot};
  operation.fp32_accumulate = {true};
  for (int i = 0; i < hidden_sizes; ++i) operation.hidden_sizes.push_back(2048 + 512 * i);
  deployment.operations = {operation};
  return deployment;
}

KernelSpec kernel_of(Pattern pattern) {
  KernelSpec spec;
  spec.pattern = pattern;
  spec.world_size = 8;
  spec.hidden_size = 8192;
  spec.arch = "sm_90a";
  spec = spec.normalised();
  const Geometry geometry = geometries(spec).front();
  spec.threads = geometry.threads;
  spec.cluster = geometry.cluster;
  return spec;
}

cache::Store open_store(const std::filesystem::path& folder) {
  cache::StoreOptions options;
  options.directories.writable = folder;
  return cache::Store(std::move(options));
}

void fill_cache(const std::filesystem::path& folder, const std::vector<KernelSpec>& kernels) {
  runtime::Toolchains toolchains(env(), runtime::ToolchainMemo({}));
  const std::string build = toolchains.for_arch("sm_90a").build();
  const cache::Store store = open_store(folder);
  const std::string cubin = filler_cubin();
  for (const KernelSpec& kernel : kernels) {
    const cache::Signature signature = runtime::signature_of(kernel, runtime::program_of(kernel), build);
    const cache::Publication published = store.publish(signature.key(), signature.to_json(), cubin, "{}");
    if (!published.stored()) throw std::runtime_error("cannot fill the cache: " + published.detail);
  }
}

}  // namespace commfuse::bench
