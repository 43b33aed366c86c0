// Compiling several kernels at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

namespace commfuse::runtime {

// Threads, not worker processes. Measured with NVRTC 13.0.88 and 24 of our header-free programs: on two cores one
// thread takes 10.6 s, two threads 5.4 s, two processes 7.9 s; on sixteen, four threads 3.3 s and four processes 4.2 s,
// sixteen of either 2.5 s. NVRTC runs the front end of one program at a time, but without headers that is a tenth of
// the work. A process costs 130 MB, a further thread 10 MB, and processes would have to find their executable inside
// somebody's engine.

/// How many to compile at a time: `requested` if positive, else COMMFUSE_JOBS, else one per core that this process may
/// use, as far as free memory allows. At least 1, at most `work`.
[[nodiscard]] int choose_jobs(int requested, std::size_t work);

/// Calls task(0) to task(count - 1), each once, `jobs` at a time, in ascending order of their start. A task must not
/// throw. Returns when all are done.
void for_each_parallel(std::size_t count, int jobs, const std::function<void(std::size_t)>& task);

/// What the limits of the control groups that hold this process leave, in bytes; empty where there is no limit. `root`
/// is where the file system of this machine begins, for tests.
[[nodiscard]] std::optional<std::uint64_t> cgroup_memory_left(const std::filesystem::path& root = "/");

}  // namespace commfuse::runtime
