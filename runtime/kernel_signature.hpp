// The cache signature of a kernel: what its machine code depends on.
#pragma once

#include <string>

#include "cache/signature.hpp"
#include "commfuse/spec.hpp"
#include "runtime/compiler.hpp"

namespace commfuse::runtime {

/// The signature of `program`, made from `spec`, when the NVRTC of this build compiles it ("13.0.88 CL-36424714").
[[nodiscard]] cache::Signature signature_of(const KernelSpec& spec, const Program& program, const std::string& build);

}  // namespace commfuse::runtime
