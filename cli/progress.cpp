#include "cli/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

namespace commfuse::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr std::string_view kEraseLine = "\r\033[K";

std::mutex mutex;
std::string line;  // what stands on the terminal now; empty: nothing

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::size_t terminal_width() {
  struct winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

bool on_terminal() {
  static const bool answer = ::isatty(STDERR_FILENO) == 1;
  return answer;
}

}  // namespace

Progress::Progress() = default;

Progress::~Progress() {
  const std::lock_guard lock(mutex);
  if (!line.empty()) put(kEraseLine);
  line.clear();
}

void Progress::show(int finished, int total, std::string_view what) {
  if (!on_terminal() || total <= 0) return;
  const std::lock_guard lock(mutex);
  const auto filled = static_cast<std::size_t>(kBarWidth * finished / total);
  line = fmt::format("[{}{}] {}/{} {}", std::string(filled, '#'), std::string(kBarWidth - filled, '.'), finished, total,
                     what);
  // A line that wraps could not be erased.
  line.resize(std::min(line.size(), terminal_width() - 1));
  put(fmt::format("{}{}", kEraseLine, line));
}

void message_on_stderr(std::string_view text) {
  const std::lock_guard lock(mutex);
  if (!line.empty()) put(kEraseLine);
  put(text);
  if (!line.empty()) put(line);
}

}  // namespace commfuse::cli
