#include "process/group_processes.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "runtime/workspace_state.hpp"

extern char** environ;

namespace commfuse {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kWords = 3 * kRotationBytes / sizeof(std::uint32_t);

std::map<std::string, RankTask>& tasks() {
  static std::map<std::string, RankTask> map;
  return map;
}

template <typename Function>
Function driver_function(const char* name) {
  void* library = ::dlopen(COMMFUSE_SHARED_MEMORY_DRIVER, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(::dlsym(library, name));
}

int run_rank(char** words) {
  RankArguments arguments;
  arguments.rank = std::atoi(words[0]);
  arguments.size = std::atoi(words[1]);
  arguments.group = words[2];
  arguments.directory = words[3];
  arguments.task = words[4];
  arguments.kind = static_cast<MemoryKind>(std::atoi(words[5]));
  arguments.times = std::atoi(words[6]);
  try {
    tasks().at(arguments.task)(arguments);
  } catch (const Error& error) {
    std::printf("%s\n", text_of(error).c_str());
  } catch (const std::exception& error) {
    std::printf("outside: %s\n", error.what());
  }
  return 0;
}

}  // namespace

std::unique_ptr<Exchange> RankArguments::meet() const {
  HostIdentity host = this_host();
  // Ranks that shall believe that they run on another host.
  if (const char* other = std::getenv("COMMFUSE_TEST_HOST")) {
    host.host += other;
    host.name = other;
  }
  return make_unix_exchange(
      {.group = group, .rank = rank, .size = size, .directory = directory / "exchange", .host = host}, 20s);
}

WorkspaceOptions RankArguments::options() {
  return {.rotation_bytes = kRotationBytes, .timeout = 1s, .set_up_timeout = 10s};
}

RankTaskEntry::RankTaskEntry(const char* name, RankTask task) { tasks()[name] = task; }

int live_objects() { return driver_function<int (*)()>("commfuse_test_live_objects")(); }
std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}
std::size_t device_bytes() { return driver_function<std::size_t (*)()>("commfuse_test_device_bytes")(); }
int wrong_calls() { return driver_function<int (*)()>("commfuse_test_wrong_calls")(); }
void limit_memory(std::size_t bytes) { driver_function<void (*)(std::size_t)>("commfuse_test_limit_memory")(bytes); }
void end_context() { driver_function<void (*)()>("commfuse_test_end_context")(); }
void* allocate_as(const char* source, std::size_t bytes) {
  using Allocate = unsigned long long (*)(const char*, std::size_t);
  return reinterpret_cast<void*>(driver_function<Allocate>("commfuse_test_allocate")(source, bytes));
}

std::vector<volatile std::uint32_t*> buffers_of(Workspace& workspace) {
  device::AllReduceParams params{};
  static_cast<runtime::WorkspaceState&>(workspace).fill(params);
  std::vector<volatile std::uint32_t*> buffers;
  for (int rank = 0; rank < workspace.world_size(); ++rank) {
    buffers.push_back(reinterpret_cast<volatile std::uint32_t*>(params.peer_buffer[rank]));
  }
  return buffers;
}

std::string use(Exchange& exchange, Workspace& workspace) {
  const auto buffers = buffers_of(workspace);
  for (const auto* buffer : buffers) {
    for (std::uint64_t i = 0; i < kWords; ++i) {
      if (buffer[i] != 0xffffffffU) return "a buffer was not empty";
    }
  }
  exchange.barrier(5s);
  const auto rank = static_cast<std::size_t>(exchange.rank());
  for (auto* buffer : buffers) buffer[kWords - 1 - rank] = static_cast<std::uint32_t>(rank);
  exchange.barrier(5s);
  for (std::size_t sender = 0; sender < buffers.size(); ++sender) {
    if (buffers[rank][kWords - 1 - sender] != sender) return "a peer's word did not arrive";
  }
  return {};
}

std::string text_of(const Error& error) { return "error " + std::string(to_string(error.code())) + " " + error.what(); }

void ProcessGroups::SetUp() {
  char pattern[] = "/tmp/commfuse-groups-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern), nullptr);
  directory_ = pattern;
}

void ProcessGroups::TearDown() { std::filesystem::remove_all(directory_); }

std::vector<std::string> ProcessGroups::run(const std::string& task, const std::vector<RankSetup>& ranks,
                                            MemoryKind kind, int times) {
  std::vector<pid_t> pids;
  const auto output = [&](std::size_t rank) { return directory_ / ("output-" + std::to_string(rank)); };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<std::string> words = {"/proc/self/exe",
                                      "--rank-process",
                                      std::to_string(rank),
                                      std::to_string(ranks.size()),
                                      "group " + directory_.string(),
                                      directory_.string(),
                                      task,
                                      std::to_string(static_cast<int>(kind)),
                                      std::to_string(times)};
    std::vector<std::string> variables = ranks[rank].environment;
    variables.emplace_back("COMMFUSE_LIBCUDA=" COMMFUSE_FAILING_DRIVER);
    variables.emplace_back("COMMFUSE_TEST_DRIVER=" COMMFUSE_SHARED_MEMORY_DRIVER);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, output(rank).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environment.data()), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    pids.push_back(pid);
  }
  std::vector<std::string> texts;
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] > 0) {
      while (::waitpid(pids[rank], nullptr, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) {
          ADD_FAILURE() << "rank " << rank << " hangs";
          ::kill(pids[rank], SIGKILL);
        }
        std::this_thread::sleep_for(2ms);
      }
    }
    std::ifstream file(output(rank));
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

void ProcessGroups::expect_all(const std::vector<std::string>& texts, const std::string& expected) {
  for (const std::string& text : texts) EXPECT_EQ(text, expected);
}

void ProcessGroups::expect_alike(const std::vector<std::string>& texts, const std::vector<std::string>& parts) {
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts.front());
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    EXPECT_EQ(text.find("left behind"), std::string::npos) << text;
  }
}

}  // namespace commfuse

int main(int argc, char** argv) {
  if (argc == 9 && std::string_view(argv[1]) == "--rank-process") return commfuse::run_rank(argv + 2);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
