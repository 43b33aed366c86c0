#include "cli/log_sink.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <memory>
#include <mutex>
#include <string_view>

#include "cli/progress.hpp"
#include "commfuse/engine.hpp"

namespace commfuse::cli {
namespace {

/// stderr, without breaking the progress line.
class ProgressAwareSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    message_on_stderr({text.data(), text.size()});
  }
  void flush_() override {}
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void log_to_stderr(int verbosity) {
  const auto logger = std::make_shared<spdlog::logger>("commfuse", std::make_shared<ProgressAwareSink>());
  // With debug messages come times, to see what takes long.
  logger->set_pattern(verbosity >= 2 ? "%n: %H:%M:%S.%e %l: %v" : "%n: %l: %v");
  logger->set_level(verbosity >= 2 ? spdlog::level::debug : verbosity == 1 ? spdlog::level::info : spdlog::level::warn);
  set_log_sink([logger](LogLevel level, std::string_view message) { logger->log(spdlog_level(level), message); });
}

}  // namespace commfuse::cli
