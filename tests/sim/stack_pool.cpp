#include "sim/stack_pool.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

namespace commfuse::sim {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kStride = StackPool::kStackBytes + kGuardBytes;
constexpr std::size_t kStacksPerSlab = 64;
// Each guard page splits a mapping in two, and the kernel allows a process about 65 000 mappings. Past this many stacks
// an overflow runs into the neighbour's unused end instead of a guard page.
constexpr std::size_t kGuardedSlabs = 256;

}  // namespace

StackPool::~StackPool() {
  for (void* slab : slabs_) munmap(slab, kStride * kStacksPerSlab);
}

boost::context::stack_context StackPool::take() {
  if (free_.empty()) map_more();
  boost::context::stack_context stack;
  stack.sp = free_.back();
  stack.size = kStackBytes;
  free_.pop_back();
  return stack;
}

void StackPool::map_more() {
  void* slab = mmap(nullptr, kStride * kStacksPerSlab, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (slab == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping fiber stacks");
  slabs_.push_back(slab);
  for (std::size_t i = kStacksPerSlab; i-- > 0;) {
    std::byte* bottom = static_cast<std::byte*>(slab) + i * kStride;
    if (slabs_.size() <= kGuardedSlabs && mprotect(bottom, kGuardBytes, PROT_NONE) != 0) {
      throw std::system_error(errno, std::generic_category(), "protecting a fiber stack");
    }
    free_.push_back(bottom + kStride);
  }
}

}  // namespace commfuse::sim
