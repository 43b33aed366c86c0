// What the fuzz programs of the cache share.
#pragma once

#include "commfuse/error.hpp"

namespace commfuse::fuzz {

/// Ends the process: the fuzzer reports the input.
inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

/// A reader of untrusted bytes may return, or throw Error(kInvalidInput) that says why, and nothing else.
template <typename Read>
void expect_value_or_invalid_input(Read&& read) {
  try {
    read();
  } catch (const Error& e) {
    require(e.code() == Code::kInvalidInput && !e.cause().empty());
  }
}

}  // namespace commfuse::fuzz
