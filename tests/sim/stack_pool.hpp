// Stacks for fibers: mapped once, touched lazily, used again.
#pragma once

#include <boost/context/stack_context.hpp>
#include <cstddef>
#include <vector>

namespace commfuse::sim {

class StackPool {
 public:
  static constexpr std::size_t kStackBytes = 64 << 10;

  /// What boost::context::fiber takes.
  struct Allocator {
    StackPool* pool;
    void** top;  // where the owner wants to know it
    boost::context::stack_context allocate() {
      const boost::context::stack_context stack = pool->take();
      *top = stack.sp;
      return stack;
    }
    void deallocate(boost::context::stack_context& stack) { pool->put_back(stack.sp); }
  };

  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  boost::context::stack_context take();
  void put_back(void* top) { free_.push_back(top); }

 private:
  void map_more();

  std::vector<void*> free_;  // tops
  std::vector<void*> slabs_;
};

}  // namespace commfuse::sim
