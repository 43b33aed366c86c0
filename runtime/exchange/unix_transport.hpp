// Reaching the first rank over a Unix socket in a private folder.
#pragma once

#include <filesystem>
#include <memory>

#include "runtime/exchange/transport.hpp"

namespace commfuse::runtime {

[[nodiscard]] std::shared_ptr<Transport> make_unix_transport(const std::filesystem::path& directory);

}  // namespace commfuse::runtime
