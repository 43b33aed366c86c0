// The one line at the bottom of a terminal that shows how far the work is.
#pragma once

#include <string>
#include <string_view>

namespace commfuse::cli {

/// Draws on stderr, only if that is a terminal. One line, removed by the destructor and before every message that goes
/// through `message_on_stderr`. At most one exists at a time.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Any thread.
  void show(int finished, int total, std::string_view what);
};

/// Writes text to stderr without mixing it into the progress line. Any thread.
void message_on_stderr(std::string_view text);

}  // namespace commfuse::cli
