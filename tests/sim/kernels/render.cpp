// Writes the C++ files of the simulated kernels: render DIRECTORY SHARDS. Each holds some of the list's Config structs,
// in the generator's own words, and one function that finds them by name.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "runtime/generator.hpp"
#include "sim/kernels/list.hpp"

namespace {

using commfuse::Algorithm;
using commfuse::KernelSpec;

std::string render_shard(const std::vector<KernelSpec>& kernels, std::size_t shard, std::size_t shards) {
  std::string configs;
  std::string cases;
  for (std::size_t i = shard; i < kernels.size(); i += shards) {
    const std::string name = kernels[i].name();
    configs += commfuse::runtime::render_config(kernels[i], name) + "\n";
    cases +=
        fmt::format("  if (name == \"{}\") return &commfuse::device::{}<{}>;\n", name,
                    kernels[i].algorithm == Algorithm::kOneShot ? "all_reduce_one_shot" : "all_reduce_two_shot", name);
  }
  return fmt::format(R"(#include <string_view>

#include "sim/ptx.hpp"

#include "all_reduce.cuh"
#include "all_reduce_two_shot.cuh"
#include "sim/kernels/registry.hpp"

namespace {{
{configs}
}}  // namespace

namespace commfuse::sim {{
AllReduceKernel find_kernel_{shard}(std::string_view name) {{
{cases}  return nullptr;
}}
}}  // namespace commfuse::sim
)",
                     fmt::arg("configs", configs), fmt::arg("cases", cases), fmt::arg("shard", shard));
}

std::string render_registry(std::size_t shards) {
  std::string declarations;
  std::string calls;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    declarations += fmt::format("AllReduceKernel find_kernel_{}(std::string_view name);\n", shard);
    calls += fmt::format("  if (const auto kernel = find_kernel_{}(name)) return kernel;\n", shard);
  }
  return fmt::format(R"(#include "sim/kernels/registry.hpp"

#include <string>
#include <string_view>

namespace commfuse::sim {{
{declarations}
AllReduceKernel find_kernel(const KernelSpec& spec) {{
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
