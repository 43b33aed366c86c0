// The commfuse command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "cli/command.hpp"
#include "cli/log_sink.hpp"
#include "cli/output.hpp"
#include "commfuse/error.hpp"
#include "commfuse/version.hpp"

namespace commfuse::cli {

CLI::App* add_command(CLI::App& app, Session& session, const char* name, const char* summary, const char* example) {
  CLI::App* command = app.add_subcommand(name, summary);
  command->add_flag("--json", session.json, "Print one JSON document on stdout instead of text");
  command->add_flag("-v,--verbose", session.verbosity, "Tell more on stderr; twice: debug messages");
  command->footer(fmt::format("Example:\n  {}", example));
  return command;
}

namespace {

int parse_and_run(int argc, char** argv) {
  CLI::App app("commfuse generates, compiles, caches and checks fused communication kernels.", "commfuse");
  app.footer(
      "Example:\n  commfuse precompile deployment.json --arch sm_90a\n\nExit codes: 0 done, 1 the work failed, 2 "
      "wrong usage or input.");
  app.set_version_flag("--version", fmt::format("commfuse {}", COMMFUSE_VERSION_STRING));
  app.require_subcommand(1);
  Session session;
  add_precompile(app, session);
  add_list(app, session);
  add_show(app, session);
  add_verify(app, session);
  add_stats(app, session);
  add_gc(app, session);
  add_clean(app, session);
  add_pack(app, session);
  add_unpack(app, session);
  add_diff(app, session);
  add_explain(app, session);
  add_doctor(app, session);
#ifdef COMMFUSE_CLI_BENCH
  add_bench(app, session);
  add_tune(app, session);
#endif
#ifdef COMMFUSE_CLI_SELFTEST
  add_selftest(app, session);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    // The flag may stand behind the fault, where the parser has not been.
    const bool json =
        std::any_of(argv, argv + argc, [](const char* text) { return std::string_view(text) == "--json"; });
    std::string command = "commfuse";
    for (const CLI::App* chosen : app.get_subcommands()) command += ' ' + chosen->get_name();
    print_error(Error(Code::kInvalidArgument, error.what(), {}, fmt::format("see {} --help", command)), json);
    return kUsage;
  }
  log_to_stderr(session.verbosity);
  try {
    return session.run();
  } catch (const UsageError& error) {
    print_error(error.error(), session.json);
    return kUsage;
  } catch (const Error& error) {
    print_error(error, session.json);
    return kFailed;
  } catch (const std::bad_alloc&) {
    print_error(Error(Code::kOutOfMemory, "not enough memory"), session.json);
    return kFailed;
  } catch (const std::exception& error) {
    print_error(Error(Code::kInternal, "unexpected failure", error.what(), "this is a fault of commfuse: report it"),
                session.json);
    return kFailed;
  }
}

}  // namespace
}  // namespace commfuse::cli

int main(int argc, char** argv) { return commfuse::cli::parse_and_run(argc, argv); }
