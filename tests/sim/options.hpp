// How a simulated execution is chosen, and what a failed one throws.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace commfuse::sim {

/// Which thread runs next.
enum class Policy {
  kRoundRobin,  ///< every rank in turn, its threads in turn
  kRandom,      ///< any thread
  kStarveOne,   ///< the subject rank runs when no other rank can, or once in about a thousand turns
  kFavourOne,   ///< the subject rank runs whenever it can, so it gets as far ahead as the protocol lets it
};

struct Options {
  std::uint64_t seed = 1;
  Policy policy = Policy::kRandom;
  std::optional<std::uint32_t> subject_rank =
      std::nullopt;                         ///< of kStarveOne and kFavourOne; otherwise drawn from the seed
  bool weak_memory = true;                  ///< false: every store is seen by everybody at once (faster)
  bool preemption = true;                   ///< switch threads at memory operations too, not only where they wait
  std::uint32_t resident_blocks = 0;        ///< that a device can hold at once; 0 = no limit
  bool shared_device = false;               ///< all ranks share one device (loopback) instead of one each
  std::uint64_t ns_per_step = 1;            ///< clock rate: a step is a turn of a thread or a memory operation
  std::uint64_t max_steps = 1'000'000'000;  ///< a run() that takes more is a failure
  std::uint32_t idle_rounds = 4096;  ///< polls of every spinning thread, without any change, that make a deadlock
  std::uint64_t bytes_per_rank = 1ull << 30;  ///< address space for the allocations of one rank (and of the host)
};

/// "seed 7, policy random, weak memory": what a message needs so that its execution can be repeated.
std::string describe(const Options& options);

/// `count` executions of `base`: consecutive seeds, and the four policies in turn.
std::vector<Options> executions(std::uint32_t count, const Options& base = {});

enum class FailureKind {
  kOutOfBounds,    ///< an access outside every allocation
  kUseAfterFree,   ///< an access to memory that was deallocated
  kMisaligned,     ///< an address that is no multiple of the access's size
  kUninitialised,  ///< a read of bytes that nobody wrote
  kMissingLane,    ///< a warp operation that some of the 32 lanes do not take part in
  kBarrier,        ///< a block or cluster barrier that a thread can no longer reach, or that is used wrongly
  kSharedMemory,   ///< shared memory of two types, outside the object, or of a block that does not run
  kDeadlock,       ///< no thread can get any further
  kStepLimit,      ///< Options::max_steps
  kUsage,          ///< the simulator was called wrongly
};

/// Thrown by World::run(). The message names rank, block, thread, address and allocation, and ends with describe().
class Failure : public std::runtime_error {
 public:
  Failure(FailureKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] FailureKind kind() const noexcept { return kind_; }

 private:
  FailureKind kind_;
};

}  // namespace commfuse::sim
