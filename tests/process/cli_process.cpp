#include "process/cli_process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

extern char** environ;

namespace commfuse::test {
namespace {

std::string content(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string entry = *each;
    if (!variables.contains(entry.substr(0, entry.find('=')))) result.push_back(entry);
  }
  for (const auto& [name, value] : variables) {
    if (!value.empty()) result.push_back(name + '=' + value);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

nlohmann::json Outcome::document() const {
  try {
    return nlohmann::json::parse(out);
  } catch (const nlohmann::json::exception& error) {
    ADD_FAILURE() << error.what() << "\nstdout: " << out << "\nstderr: " << err;
    return {};
  }
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "commfuse-cli-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

Outcome run_commfuse(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& variables) {
  const TemporaryFolder folder;
  std::vector<std::string> command = {COMMFUSE_COMMAND};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = environment_with(variables);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (folder.path() / "out").c_str(), flags, 0600);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (folder.path() / "err").c_str(), flags, 0600);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, COMMFUSE_COMMAND, &actions, nullptr, pointers(command).data(),
                                  pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " COMMFUSE_COMMAND);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = content(folder.path() / "out");
  outcome.err = content(folder.path() / "err");
  return outcome;
}

}  // namespace commfuse::test
