// Every kernel of a list, compiled at most once between all processes and threads that want it now.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace commfuse::cache {

/// One kernel that somebody needs.
struct Wanted {
  std::string key;
  std::string signature_json;
};

/// What compiling came to.
struct Compiled {
  std::string cubin;
  std::string facts_json;  ///< as for Store::publish
};

enum class Origin : int {
  kHit,       ///< was in the cache, or another process put it there meanwhile
  kCompiled,  ///< by this call
  kShared,    ///< by another thread of this process meanwhile
  kFailed,    ///< the compile threw
};

/// One kernel's way; of the same index as its Wanted.
struct Obtained {
  Origin origin = Origin::kFailed;
  std::string cubin;
  std::string cubin_sha256;   ///< 64 hexadecimal digits; empty for kFailed
  std::string metadata_json;  ///< for kHit: the entry's .json
  std::string facts_json;     ///< for kCompiled and kShared
  Lookup miss;                ///< why it was not found at first; meaningless for kHit at the first look
  Publication publication;    ///< for kCompiled and kShared
  std::exception_ptr error;   ///< for kFailed
  double milliseconds = 0;    ///< compiling; 0 for a hit
};

struct ObtainOptions {
  int rank = 0;  ///< of `ranks` processes that want the same list: each starts elsewhere in it
  int ranks = 1;
  int jobs = 1;  ///< compiles at a time in this process
  /// How long to wait for somebody else's compile of a key before compiling it as well. A compile takes about a tenth
  /// of a second; only a holder that is stopped or starved comes near this.
  std::chrono::milliseconds patience{30'000};
};

/// Looks each kernel up and compiles what is missing. A key that another process or thread is compiling is skipped and
/// come back to; after taking a key's lock the store is asked again. A lock that cannot be had is no error: the kernel
/// is compiled without. A kernel that cannot be stored is returned all the same. While it runs, eviction spares the
/// list.
///
/// @param compile  called with an index into `wanted`, from up to `jobs` threads at a time, the caller's among them.
///                 What it throws goes to Obtained::error of that kernel alone, and nothing of it is remembered
/// @param done     called after each kernel, from one thread at a time; may be empty
[[nodiscard]] std::vector<Obtained> obtain(const Store& store, std::span<const Wanted> wanted,
                                           const std::function<Compiled(std::size_t index)>& compile,
                                           const ObtainOptions& options = {},
                                           const std::function<void(std::size_t index, const Obtained&)>& done = {});

}  // namespace commfuse::cache
