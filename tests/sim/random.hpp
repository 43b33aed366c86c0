// The simulator's only source of chance: the same numbers on every machine for the same seed.
#pragma once

#include <cstdint>

namespace commfuse::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) { next(); }

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// 0 <= result < bound; bound is at least 1 and below 2^32.
  std::uint32_t below(std::uint64_t bound) { return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace commfuse::sim
