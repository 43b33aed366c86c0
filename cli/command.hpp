// What the commands share: how one is added to the command line, and how it ends.
#pragma once

#include <functional>
#include <stdexcept>
#include <utility>

#include "commfuse/error.hpp"

namespace CLI {
class App;
}

namespace commfuse::cli {

// Exit codes.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

/// Options that every command has, and the command that was chosen.
struct Session {
  bool json = false;  ///< one JSON document on stdout instead of text
  int verbosity = 0;  ///< 1: also what the library tells; 2: also its debug messages
  std::function<int()> run;
};

/// An Error that the caller of the command can mend: wrong usage or input.
class UsageError : public std::runtime_error {
 public:
  explicit UsageError(Error error) : std::runtime_error(error.what()), error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

/// Adds a subcommand with the session's common options; `example` is shown below its help.
CLI::App* add_command(CLI::App& app, Session& session, const char* name, const char* summary, const char* example);

void add_precompile(CLI::App& app, Session& session);
void add_list(CLI::App& app, Session& session);
void add_show(CLI::App& app, Session& session);
void add_verify(CLI::App& app, Session& session);
void add_stats(CLI::App& app, Session& session);
void add_gc(CLI::App& app, Session& session);
void add_clean(CLI::App& app, Session& session);
void add_pack(CLI::App& app, Session& session);
void add_unpack(CLI::App& app, Session& session);
void add_diff(CLI::App& app, Session& session);
void add_explain(CLI::App& app, Session& session);
void add_doctor(CLI::App& app, Session& session);
void add_bench(CLI::App& app, Session& session);
void add_tune(CLI::App& app, Session& session);
void add_selftest(CLI::App& app, Session& session);

}  // namespace commfuse::cli
