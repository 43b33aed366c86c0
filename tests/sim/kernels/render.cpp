// Writes the C++ files of the simulated kernels: render DIRECTORY SHARDS. Each holds some of the list's Config structs,
// in the generator's own words, and one function that finds them by name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>

#include "runtime/generator.hpp"
#include "sim/kernels/list.hpp"

namespace {

using commfuse::KernelSpec;

std::string render_shard(const std::vector<KernelSpec>& kernels, std::size_t shard, std::size_t shards) {
  std::string configs;
  std::string cases;
  std::set<std::string> headers;
  for (std::size_t i = shard; i < kernels.size(); i += shards) {
    const std::string name = kernels[i].name();
    configs += commfuse::runtime::render_config(kernels[i], name) + "\n";
    const commfuse::runtime::TemplateEntry entry = commfuse::runtime::template_of(kernels[i]);
    headers.insert(fmt::format("#include \"{}\"\n", entry.header));
    cases += fmt::format("  if (name == \"{0}\") return &simulate<device::{2}, &device::{1}<{0}>>;\n", name,
                         entry.function, entry.params);
  }
  return fmt::format(R"(#include <string_view>

#include "sim/ptx.hpp"

{headers}#include "sim/kernels/registry.hpp"

namespace {{
{configs}
}}  // namespace

namespace commfuse::sim {{
template <typename Params, void (*kKernel)(const Params&)>
static void simulate(const void* params) {{
  kKernel(*static_cast<const Params*>(params));
}}

SimulatedKernel find_kernel_{shard}(std::string_view name) {{
{cases}  return nullptr;
}}
}}  // namespace commfuse::sim
)",
                     fmt::arg("headers", fmt::join(headers, "")), fmt::arg("configs", configs),
                     fmt::arg("cases", cases), fmt::arg("shard", shard));
}

std::string render_registry(std::size_t shards) {
  std::string declarations;
  std::string calls;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    declarations += fmt::format("SimulatedKernel find_kernel_{}(std::string_view name);\n", shard);
    calls += fmt::format("  if (const auto kernel = find_kernel_{}(name)) return kernel;\n", shard);
  }
  return fmt::format(R"(#include "sim/kernels/registry.hpp"

#include <string>
#include <string_view>

namespace commfuse::sim {{
{declarations}
SimulatedKernel find_kernel(const KernelSpec& spec) {{
  const std::string name = spec.name();
{calls}  return nullptr;
}}
}}  // namespace commfuse::sim
)",
                     fmt::arg("declarations", declarations), fmt::arg("calls", calls));
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: render DIRECTORY SHARDS");
  const std::string directory = argv[1];
  const auto shards = static_cast<std::size_t>(std::atoi(argv[2]));
  const auto kernels = commfuse::sim::simulated_kernels();
  for (std::size_t shard = 0; shard < shards; ++shard) {
    write(fmt::format("{}/kernels_{}.cpp", directory, shard), render_shard(kernels, shard, shards));
  }
  write(directory + "/registry.cpp", render_registry(shards));
  return 0;
} catch (const std::exception& error) {
  std::cerr << "render: " << error.what() << '\n';
  return 1;
}
