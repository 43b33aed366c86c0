// The library's own messages. They go to the sink that the embedder set (commfuse::set_log_sink); without one they
// vanish.
#pragma once

#include <string_view>

#include "commfuse/engine.hpp"

namespace commfuse {

/// Hands one message, without a final newline, to the sink. From any thread; the sink sees one call at a time. A sink
/// that throws loses the message and nothing else, so a log line can stand in destructors and on failure paths.
void log(LogLevel level, std::string_view message) noexcept;

/// Whether a sink is set: lets a caller skip the making of an expensive message.
[[nodiscard]] bool log_enabled() noexcept;

}  // namespace commfuse
