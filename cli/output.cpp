#include "cli/output.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "cli/progress.hpp"

namespace commfuse::cli {

using nlohmann::json;

void print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) throw Error(Code::kIo, "cannot write to standard output", std::generic_category().message(errno));
}

void print_document(const json& document) {
  print(document.dump(2, ' ', false, json::error_handler_t::replace) + '\n');
}

json error_document(const Error& error) {
  return {{"code", to_string(error.code())},
          {"message", error.message()},
          {"cause", error.cause()},
          {"remedy", error.remedy()}};
}

void print_error(const Error& error, bool as_json) noexcept {
  try {
    std::string text = fmt::format("commfuse: {}\n", error.message());
    if (!error.cause().empty()) text += fmt::format("  cause: {}\n", error.cause());
    if (!error.remedy().empty()) text += fmt::format("  remedy: {}\n", error.remedy());
    message_on_stderr(text);
    if (as_json) print_document({{"error", error_document(error)}});
  } catch (const std::exception&) {
    // stdout or memory is gone; the exit code still tells.
  }
}

}  // namespace commfuse::cli
