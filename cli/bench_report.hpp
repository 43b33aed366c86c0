// The benchmark's result as people and as programs read it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/bench_result.hpp"

namespace commfuse::cli {

[[nodiscard]] nlohmann::json bench_document(const BenchResult& result);
[[nodiscard]] std::string bench_text(const BenchResult& result);

}  // namespace commfuse::cli
