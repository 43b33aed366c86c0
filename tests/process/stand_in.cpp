#include "process/stand_in.hpp"

#include <dlfcn.h>

#include <chrono>

#include "process/group_processes.hpp"
#include "runtime/workspace_state.hpp"

namespace commfuse {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kWords = 3 * kRotationBytes / sizeof(std::uint32_t);

template <typename Function>
Function driver_function(const char* name) {
  void* library = ::dlopen(COMMFUSE_SHARED_MEMORY_DRIVER, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

int live_objects() { return driver_function<int (*)()>("commfuse_test_live_objects")(); }
int foreign_mappings() { return driver_function<int (*)()>("commfuse_test_foreign_mappings")(); }
std::size_t device_bytes() { return driver_function<std::size_t (*)()>("commfuse_test_device_bytes")(); }
int wrong_calls() { return driver_function<int (*)()>("commfuse_test_wrong_calls")(); }
void limit_memory(std::size_t bytes) { driver_function<void (*)(std::size_t)>("commfuse_test_limit_memory")(bytes); }
void end_context() { driver_function<void (*)()>("commfuse_test_end_context")(); }
void* allocate_as(const char* source, std::size_t bytes) {
  using Allocate = unsigned long long (*)(const char*, std::size_t);
  return reinterpret_cast<void*>(driver_function<Allocate>("commfuse_test_allocate")(source, bytes));
}

std::vector<volatile std::uint32_t*> buffers_of(Workspace& workspace) {
  device::AllReduceParams params{};
  static_cast<runtime::WorkspaceState&>(workspace).fill(params);
  std::vector<volatile std::uint32_t*> buffers;
  for (int rank = 0; rank < workspace.world_size(); ++rank) {
    buffers.push_back(reinterpret_cast<volatile std::uint32_t*>(params.peer_buffer[rank]));
  }
  return buffers;
}

std::string use(Exchange& exchange, Workspace& workspace) {
  const auto buffers = buffers_of(workspace);
  for (const auto* buffer : buffers) {
    for (std::uint64_t i = 0; i < kWords; ++i) {
      if (buffer[i] != 0xffffffffU) return "a buffer was not empty";
    }
  }
  exchange.barrier(5s);
  const auto rank = static_cast<std::size_t>(exchange.rank());
  for (auto* buffer : buffers) buffer[kWords - 1 - rank] = static_cast<std::uint32_t>(rank);
  exchange.barrier(5s);
  for (std::size_t sender = 0; sender < buffers.size(); ++sender) {
    if (buffers[rank][kWords - 1 - sender] != sender) return "a peer's word did not arrive";
  }
  return {};
}

}  // namespace commfuse
