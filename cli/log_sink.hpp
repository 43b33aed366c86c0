// The library's log on stderr.
#pragma once

namespace commfuse::cli {

/// Warnings and errors; with verbosity 1 also information, with 2 also debug messages.
void log_to_stderr(int verbosity);

}  // namespace commfuse::cli
