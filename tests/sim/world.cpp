#include "sim/world.hpp"

#include <cstring>
#include <utility>

#include "sim/engine.hpp"

namespace commfuse::sim {

World::World(std::uint32_t ranks, const Options& options) {
  if (ranks == 0) throw Failure(FailureKind::kUsage, "a world of no ranks");
  engine_ = std::make_unique<Engine>(ranks, options);
}
World::~World() = default;

void* World::allocate_bytes(std::uint32_t rank, std::size_t bytes, std::string_view name) {
  if (rank >= ranks()) throw Failure(FailureKind::kUsage, "allocation for a rank outside the world");
  return engine_->arena().allocate(rank, bytes, name);
}

void* World::allocate_host_bytes(std::size_t bytes, std::string_view name) {
  Arena& arena = engine_->arena();
  void* memory = arena.allocate(arena.host_region(), bytes, name);
  arena.mark_initialised(memory, bytes);
  return memory;
}

void World::register_host(void* memory, std::size_t bytes, std::string_view name) {
  engine_->arena().adopt(memory, bytes, name);
}

void World::deallocate(const void* memory) { engine_->arena().deallocate(memory); }

void World::memset(void* destination, int value, std::size_t bytes) {
  engine_->arena().mark_initialised(destination, bytes);
  std::memset(destination, value, bytes);
}

void World::write(void* destination, const void* source, std::size_t bytes) {
  engine_->arena().mark_initialised(destination, bytes);
  std::memcpy(destination, source, bytes);
}

void World::mark_initialised(const void* memory, std::size_t bytes) {
  engine_->arena().mark_initialised(memory, bytes);
}

void World::require_initialised(const void* memory, std::size_t bytes) const {
  engine_->arena().require_initialised(memory, bytes);
}

void World::launch(std::uint32_t rank, std::function<void()> kernel, const LaunchShape& shape) {
  engine_->launch(rank, std::move(kernel), shape);
}

void World::at(std::uint64_t ns, std::function<void()> action) { engine_->at(ns, std::move(action)); }

void World::run() { engine_->run(); }

std::uint32_t World::ranks() const { return engine_->ranks(); }
std::uint64_t World::now_ns() const { return engine_->clock(); }
const Options& World::options() const { return engine_->options(); }
Statistics World::statistics() const { return engine_->statistics(); }

}  // namespace commfuse::sim
