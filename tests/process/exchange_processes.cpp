#include "exchange_processes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace commfuse::exchange_testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

Process::Process(const std::string& program, const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment)
    : started_(Clock::now()) {
  int input[2] = {-1, -1}, output[2] = {-1, -1};
  EXPECT_EQ(::pipe2(input, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(output, O_CLOEXEC), 0);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(input[0], 0);
    ::dup2(output[1], 1);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  ::close(input[0]);
  ::close(output[1]);
  input_ = input[1];
  output_ = output[0];
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::exchange(other.input_, -1)),
      output_(std::exchange(other.output_, -1)),
      text_(std::move(other.text_)),
      started_(other.started_),
      lifetime_(other.lifetime_) {}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (input_ >= 0) ::close(input_);
  if (output_ >= 0) ::close(output_);
}

void Process::send_signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }

void Process::write_line() const { EXPECT_EQ(::write(input_, "\n", 1), 1); }

bool Process::read_some(Clock::time_point deadline) {
  pollfd entry = {output_, POLLIN, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (::poll(&entry, 1, static_cast<int>(std::max<long>(left, 0))) <= 0) {
    ADD_FAILURE() << "a rank did not end; so far it said: " << text_;
    ::kill(pid_, SIGKILL);
  }
  char buffer[4096];
  const ssize_t got = ::read(output_, buffer, sizeof(buffer));
  if (got > 0) text_.append(buffer, static_cast<std::size_t>(got));
  return got > 0;
}

void Process::wait_for_line(const std::string& line) {
  const auto deadline = Clock::now() + kPatience;
  while (text_.find(line + "\n") == std::string::npos) {
    if (!read_some(deadline)) {
      ADD_FAILURE() << "a rank ended without saying '" << line << "': " << text_;
      return;
    }
  }
}

std::string Process::finish() {
  const auto deadline = Clock::now() + kPatience;
  while (read_some(deadline)) {
  }
  lifetime_ = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (WIFSIGNALED(status)) text_ += "killed by signal " + std::to_string(WTERMSIG(status)) + "\n";
  return text_;
}

Process Ranks::start(int rank, const std::vector<std::string>& steps) const {
  std::vector<std::string> arguments = {"rank=" + std::to_string(rank), "size=" + std::to_string(size)};
  arguments.insert(arguments.end(), common.begin(), common.end());
  arguments.insert(arguments.end(), steps.begin(), steps.end());
  return {COMMFUSE_EXCHANGE_PEER, arguments};
}

std::vector<std::string> Ranks::run(const std::vector<std::string>& steps) const {
  std::vector<Process> processes;
  for (int rank = 0; rank < size; ++rank) processes.push_back(start(rank, steps));
  std::vector<std::string> texts;
  for (auto& process : processes) texts.push_back(process.finish());
  return texts;
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "commfuse-exchange-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make a folder";
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t Folder::count() const {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
}

std::string free_address() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(socket);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

}  // namespace commfuse::exchange_testing
