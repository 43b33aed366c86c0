// How tests that run once per kernel are called and printed.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "commfuse/spec.hpp"

namespace commfuse {

/// Instead of the bytes of the struct.
inline void PrintTo(const KernelSpec& spec, std::ostream* out) { *out << spec.name(); }

namespace sim {

inline std::string name_of_case(const ::testing::TestParamInfo<KernelSpec>& info) { return info.param.name(); }

}  // namespace sim
}  // namespace commfuse
