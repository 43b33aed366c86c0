// What a cubin's own tables say about a kernel. A cubin is an ELF file; nothing else is accepted.
#pragma once

#include <cstdint>
#include <string_view>

namespace commfuse::runtime {

struct CubinFacts {
  int arch = 0;                    ///< compute capability times ten
  int registers = 0;               ///< per thread
  std::uint32_t stack_bytes = 0;   ///< per thread, in local memory: spilled registers and indexed arrays
  std::uint32_t shared_bytes = 0;  ///< per block, static, with what the system reserves for itself there
  std::uint32_t param_bytes = 0;   ///< of all parameters
  std::uint64_t code_bytes = 0;    ///< of the kernel's instructions
};

/// Reads the tables. Throws Error(kInvalidInput) where `cubin` is empty, no ELF file for CUDA, has a table that leaves
/// the file, or holds no kernel of that name.
[[nodiscard]] CubinFacts read_cubin(std::string_view cubin, std::string_view kernel);

}  // namespace commfuse::runtime
